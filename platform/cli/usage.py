"""`loraplex usage`: what a tenant's requests used."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import AsJson, CommandContext, DatabaseUrl, DataDir, run
from loraplex.platform.cli.output import print_json, print_table

if TYPE_CHECKING:
    from loraplex.tenants.ledger import UsageRecord

app = typer.Typer(help="Usage of a tenant.")

Instant = Annotated[datetime | None, typer.Option(help="UTC.")]


@app.callback()
def usage() -> None:
    """Usage of a tenant."""


@app.command()
def show(
    tenant: Annotated[str, typer.Option(help="Name of the tenant.")],
    since: Instant = None,
    until: Instant = None,
    limit: Annotated[int, typer.Option(min=1, help="Show only the newest so many.")] = 1000,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Show the requests accepted from `since` on and before `until`, oldest first."""

    async def work(context: CommandContext) -> "list[UsageRecord]":
        from loraplex.tenants import directory, ledger

        async with context.database.reader() as session:
            owner = await directory.get_by_name(session, tenant)
            # One more than asked for tells whether there are more.
            newest = await ledger.list_usage(
                session, owner.id, _in_utc(since), _in_utc(until), limit + 1
            )
            return newest[::-1]

    records = run(work, data_dir, database_url)
    if len(records) > limit:
        records = records[1:]
        typer.echo(f"Only the newest {limit} requests are shown; raise --limit for more.", err=True)
    if as_json:
        print_json(_as_json(tenant, record) for record in records)
        return
    print_table(
        ("ACCEPTED", "REQUEST", "MODEL", "PROMPT", "CACHED", "OUTPUT", "FINISH", "QUEUE MS"),
        (
            (
                r.accepted_at,
                r.request_id,
                r.model,
                r.prompt_tokens,
                r.cached_tokens,
                r.completion_tokens,
                r.finish_reason,
                r.queue_ms,
            )
            for r in records
        ),
        empty="No requests in this time.",
    )


def _in_utc(moment: datetime | None) -> datetime | None:
    return moment and moment.replace(tzinfo=UTC)


def _as_json(tenant: str, record: "UsageRecord") -> dict[str, object]:
    fields = asdict(record)
    del fields["tenant_id"], fields["requested_model"]
    return {"request_id": fields.pop("request_id"), "tenant": tenant, **fields}
