"""`loraplex billing`: exports that an invoice can be made from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from loraplex.platform.cli.context import (
    CommandContext,
    CommandFailed,
    DatabaseUrl,
    DataDir,
    run,
)
from loraplex.platform.cli.output import counted, print_json

if TYPE_CHECKING:
    from loraplex.platform.billing_export import Export

app = typer.Typer(help="Exports that an invoice can be made from.")


@app.callback()
def billing() -> None:
    """Exports that an invoice can be made from."""


@app.command()
def export(
    period: Annotated[str, typer.Option(metavar="YYYY-MM", help="Calendar month in UTC.")],
    out: Annotated[Path, typer.Option(help="Folder to make; it must be absent or empty.")],
    format_: Annotated[Literal["csv", "jsonl"], typer.Option("--format")] = "csv",
    tenant: Annotated[str | None, typer.Option(help="Only this tenant. Default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Write a row per request accepted in the period, and a manifest with sums and SHA-256."""

    async def work(context: CommandContext) -> "dict[str, object]":
        from loraplex.platform.billing_export import Export, ExportRefused
        from loraplex.tenants.billing import BillingPeriod

        asked = Export(BillingPeriod.parse(period), format_, tenant, context.now)
        try:
            return await _write(context, asked, out)
        except ExportRefused as error:
            raise CommandFailed(str(error)) from error

    manifest = run(work, data_dir, database_url)
    if not manifest["period_complete"]:
        typer.echo(f"{period} is not over: the export has what was used so far.", err=True)
    if as_json:
        print_json([manifest])
        return
    typer.echo(f"Wrote {counted(int(str(manifest['rows'])), 'row')} to {out}.")


async def _write(context: CommandContext, asked: "Export", out: Path) -> "dict[str, object]":
    from loraplex.platform.billing_export import check_whole, exporting, read_manifest
    from loraplex.tenants import directory
    from loraplex.tenants.ledger import UsageFilter, stream_usage
    from loraplex.tenants.retention import usage_is_whole_from

    async with context.database.snapshot() as session:
        check_whole(asked.period, await usage_is_whole_from(session))
        owner = asked.tenant and await directory.get_by_name(session, asked.tenant)
        names = {tenant.id: tenant.name for tenant in await directory.list_tenants(session)}
        wanted = UsageFilter(
            tenant_id=owner.id if owner else None,
            since=asked.period.start,
            until=asked.period.end,
        )
        with exporting(asked, names, out) as rows:
            async for record in stream_usage(session, wanted):
                rows.add(record)
    return read_manifest(out)
