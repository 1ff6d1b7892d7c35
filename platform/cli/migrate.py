"""`loraplex migrate`: bring the database up to date, as every other command does at its start."""

import typer

from loraplex.platform.cli.context import CommandContext, DatabaseUrl, DataDir, run


def migrate(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Bring the database to the newest version of its tables; safe to repeat."""

    from loraplex.tenants.db import shown

    async def work(context: CommandContext) -> str:
        return shown(context.database.url)

    url = run(work, data_dir, database_url, makes_database=True)
    typer.echo(f"The database {url} is up to date.")
