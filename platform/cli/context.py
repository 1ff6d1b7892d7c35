"""What the sub-commands share: their options, an open database, and how errors are told."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from loraplex.platform.settings import Settings
    from loraplex.tenants.audit import Act
    from loraplex.tenants.db import Database
    from loraplex.tenants.key_scopes import Grantor

T = TypeVar("T")

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Folder of the embedded database, adapters and the secret. "
        "Default: LORAPLEX_DATA_DIR, else ./loraplex-data.",
        show_default=False,
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        help="SQLAlchemy URL of the database. Default: LORAPLEX_DATABASE_URL, "
        "else an SQLite file in the data directory.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")]


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What a command works with."""

    settings: "Settings"
    database: "Database"
    now: datetime

    def act(self) -> "Act":
        """What is done now, by whoever has the shell."""
        from loraplex.tenants.audit import CLI, Act

        return Act(CLI, self.now)

    def grantor(self) -> "Grantor":
        """Whoever has the shell, who may give what there is in a tenant."""
        from loraplex.tenants.key_scopes import of_platform

        return of_platform(self.act())

    def secret(self) -> bytes:
        """Return the deployment's secret; made at first use."""
        from loraplex.tenants.secret import load_secret

        given = self.settings.secret
        return load_secret(self.settings.data_dir, given.get_secret_value() if given else None)


def run(
    work: Callable[[CommandContext], Awaitable[T]],
    data_dir: Path | None,
    database_url: str | None,
    *,
    makes_database: bool = False,
) -> T:
    """Run `work` against the migrated database of these options; expected errors exit with 1.

    Only a command that `makes_database` does so where there is none: others would seem to work
    from a wrong folder.
    """
    with reporting_errors():
        settings = load_settings(data_dir, database_url)
        if not makes_database:
            _require_database(settings)
        return asyncio.run(_with_database(work, settings))


def load_settings(data_dir: Path | None, database_url: str | None) -> "Settings":
    """Return the settings of the environment, with what the command line has laid over."""
    from loraplex.platform.settings import Settings

    given: dict[str, Any] = {"data_dir": data_dir, "database_url": database_url}
    return Settings(**{name: value for name, value in given.items() if value is not None})


@contextmanager
def reporting_errors(status: int = 1) -> Iterator[None]:
    """Tell an expected error in one line on stderr and exit; others keep their traceback."""
    from pydantic import ValidationError

    from loraplex.adapters.errors import AdapterError, CheckpointInvalid
    from loraplex.adapters.registry.errors import RegistryError
    from loraplex.platform.backup.errors import BackupError
    from loraplex.tenants.errors import TenantsError

    try:
        yield
    except CheckpointInvalid as error:
        lines = ["the adapter is refused:", *map(str, error.problems)]
        raise failure("\n  - ".join(lines), status) from None
    except ValidationError as error:
        raise failure(_settings_problems(error), status) from None
    except (TenantsError, RegistryError, AdapterError, BackupError, CommandFailed) as error:
        raise failure(str(error), status) from None


class CommandFailed(Exception):
    """A command cannot do its work; the message says why and what helps."""


def _require_database(settings: "Settings") -> None:
    if settings.database_url is None and not settings.database_path.exists():
        raise CommandFailed(
            f"there is no database in {settings.data_dir.resolve()}; name the folder that "
            "`loraplex serve` uses with --data-dir, or make one with: loraplex migrate"
        )


async def _with_database(work: Callable[[CommandContext], Awaitable[T]], settings: "Settings") -> T:
    from loraplex.tenants.db import Database, explaining_failures, migrate

    database = Database.open(settings.resolved_database_url)
    try:
        await migrate(database)
        with explaining_failures(database.url):
            return await work(CommandContext(settings, database, datetime.now(UTC)))
    finally:
        await database.close()


def failure(message: str, status: int = 1) -> typer.Exit:
    """Tell why a command ends without having done its work."""
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(status)


def _settings_problems(error: Any) -> str:  # noqa: ANN401  pydantic is imported only when needed
    # Values are not told: some are secrets, or addresses that hold a password.
    problems = (
        f"LORAPLEX_{str(item['loc'][0]).upper()}: {item['msg']}" if item["loc"] else item["msg"]
        for item in error.errors()
    )
    return "the settings are not valid: " + "; ".join(problems)
