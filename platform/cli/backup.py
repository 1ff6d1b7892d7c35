"""`loraplex backup` and `loraplex restore`: database and adapters, as of one moment."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import (
    CommandContext,
    CommandFailed,
    DatabaseUrl,
    DataDir,
    load_settings,
    reporting_errors,
    run,
)
from loraplex.platform.cli.output import counted, show_progress

if TYPE_CHECKING:
    from loraplex.platform.backup.contents import Manifest
    from loraplex.platform.settings import Settings

Folder = Annotated[Path, typer.Argument(metavar="PATH", help="The backup's folder.")]


def backup(path: Folder, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Back up database and adapters into a new folder, as of one moment, while requests run.

    The secret is not in it: keep the data directory's file `secret`, or LORAPLEX_SECRET, apart.
    """

    async def work(context: CommandContext) -> "Manifest":
        from loraplex.platform.adapter_bytes import store_of
        from loraplex.platform.backup.writing import BackupWriter

        writer = BackupWriter(
            context.database,
            store_of(context.settings),
            context.secret(),
            context.now,
            show_progress,
        )
        try:
            return await writer.write(path)
        except OSError as error:
            raise CommandFailed(f"no backup was written: {error}") from error

    manifest = run(work, data_dir, database_url)
    typer.echo(f"Backed up {_told(manifest)} to {path}.")


def restore(
    path: Folder,
    verify: Annotated[
        bool, typer.Option("--verify", help="Only read all of the backup, and change nothing.")
    ] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Restore a backup into an empty deployment, whole or not at all; no gateway may run.

    The database may be of another kind than the one that was backed up, and adapters may lie
    elsewhere. The secret must be the backup's.
    """
    with reporting_errors():
        secret = _secret(load_settings(data_dir, database_url))
    if verify:
        with reporting_errors():
            manifest = _verified(path, secret)
        typer.echo(f"The backup is whole: {_told(manifest)}.")
        return

    async def work(context: CommandContext) -> "Manifest":
        from loraplex.platform.adapter_bytes import store_of
        from loraplex.platform.backup.restoring import Restorer

        store = store_of(context.settings)
        restorer = Restorer(context.database, store, secret, context.now, show_progress)
        try:
            return await restorer.restore(path)
        except OSError as error:
            raise CommandFailed(f"nothing was restored: {error}") from error

    manifest = run(work, data_dir, database_url, makes_database=True)
    typer.echo(f"Restored {_told(manifest)}.")


def _verified(path: Path, secret: bytes) -> "Manifest":
    from loraplex.platform.backup import verifying

    manifest = verifying.read_manifest(path, secret)
    verifying.check_contents(path, manifest, show_progress)
    return manifest


def _secret(settings: "Settings") -> bytes:
    """The secret that is there; a new one would open none of the backup's keys."""
    from loraplex.tenants.secret import SECRET_FILE, load_secret

    if settings.secret is None and not (settings.data_dir / SECRET_FILE).exists():
        raise CommandFailed(
            f"there is no secret in {settings.data_dir.resolve()}; put the file 'secret' of the "
            "deployment that was backed up there, or set LORAPLEX_SECRET"
        )
    given = settings.secret
    return load_secret(settings.data_dir, given.get_secret_value() if given else None)


def _told(manifest: "Manifest") -> str:
    rows = sum(table.rows for table in manifest.tables)
    adapters = counted(len(manifest.adapters), "adapter")
    taken_at = manifest.taken_at.strftime("%Y-%m-%d %H:%M:%S")
    return f"{counted(rows, 'row')} and {adapters} as of {taken_at} UTC"
