"""`loraplex tenant`: who may use the platform, and how much of it."""

import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import (
    AsJson,
    CommandContext,
    DatabaseUrl,
    DataDir,
    TenantName,
    run,
)
from loraplex.platform.cli.output import print_json, print_table

if TYPE_CHECKING:
    from loraplex.tenants.directory import TenantRecord

app = typer.Typer(help="Tenants: who may use the platform, and how much of it.")

Limit = Annotated[int | None, typer.Option(min=1, help="Default: the platform's limit.")]

Deadline = Annotated[
    int | None,
    typer.Option(min=1, help="Refuse requests whose first token cannot come so soon, in ms."),
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="1 to 40 characters of a-z, 0-9 and '-'.")],
    weight: Annotated[float, typer.Option(help="Share, relative to other tenants.")] = 1.0,
    requests_per_minute: Limit = None,
    tokens_per_minute: Limit = None,
    concurrency: Limit = None,
    ttft_deadline_ms: Deadline = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Add a tenant."""

    async def work(context: CommandContext) -> "TenantRecord":
        from loraplex.tenants import directory
        from loraplex.tenants.limits import TenantLimits

        limits = TenantLimits(requests_per_minute, tokens_per_minute, concurrency, ttft_deadline_ms)
        async with context.database.session() as session:
            return await directory.create(
                session, name, context.now, secrets.token_bytes, weight, limits
            )

    tenant = run(work, data_dir, database_url)
    typer.echo(f"Created tenant {tenant.name} ({tenant.id}).")


@app.command("list")
def list_(
    as_json: AsJson = False, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """List all tenants."""

    async def work(context: CommandContext) -> "list[TenantRecord]":
        from loraplex.tenants import directory

        async with context.database.reader() as session:
            return await directory.list_tenants(session)

    tenants = run(work, data_dir, database_url)
    if as_json:
        print_json(asdict(tenant) for tenant in tenants)
        return
    print_table(
        ("NAME", "STATUS", "WEIGHT", "REQUESTS/MIN", "TOKENS/MIN", "CONCURRENCY", "CREATED"),
        (
            (tenant.name, tenant.status, tenant.weight, *_limits(tenant), tenant.created_at)
            for tenant in tenants
        ),
        empty="There are no tenants; add one with: loraplex tenant create NAME",
    )


@app.command()
def suspend(name: TenantName, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Refuse the keys of a tenant until it is resumed."""

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import directory

        async with context.database.session() as session:
            await directory.suspend(session, name)

    run(work, data_dir, database_url)
    typer.echo(f"Suspended tenant {name}: its keys are refused from now on.")


@app.command()
def resume(name: TenantName, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Accept the keys of a suspended tenant again."""

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import directory

        async with context.database.session() as session:
            await directory.resume(session, name)

    run(work, data_dir, database_url)
    typer.echo(f"Resumed tenant {name}: its keys are accepted again.")


def _limits(tenant: "TenantRecord") -> tuple[str, str, str]:
    limits = tenant.limits
    values = (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrency)
    shown = ["default" if value is None else str(value) for value in values]
    return shown[0], shown[1], shown[2]
