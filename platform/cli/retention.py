"""`loraplex retention`: what the database forgets, now rather than tomorrow."""

from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import CommandContext, DatabaseUrl, DataDir, run
from loraplex.platform.cli.output import counted

if TYPE_CHECKING:
    from loraplex.tenants.retention import Forgotten

app = typer.Typer(help="What the database forgets.")


@app.callback()
def retention() -> None:
    """What the database forgets."""


@app.command("run")
def run_(
    usage_days: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Remove usage older than this, but none of a month that may still be billed. "
            "Default: LORAPLEX_USAGE_DAYS, else none is removed.",
        ),
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Remove what is over, as gateways do daily. The audit log is never shortened."""

    async def work(context: CommandContext) -> "Forgotten":
        from loraplex.tenants.retention import forget

        days = context.settings.usage_days if usage_days is None else usage_days
        return await forget(context.database, context.now, days)

    gone = run(work, data_dir, database_url)
    told = (
        counted(gone.usage, "usage row"),
        counted(gone.idempotency, "repeatable answer"),
        counted(gone.sessions, "session"),
    )
    typer.echo(f"Removed {', '.join(told)}.")
