"""A terminal on one data directory and one database, for tests of commands."""

import json
from pathlib import Path

import typer
from click.testing import Result
from typer.testing import CliRunner

from loraplex.platform.cli import adapter, audit, key, migrate, tenant, usage

app = typer.Typer()
app.add_typer(tenant.app, name="tenant")
app.add_typer(key.app, name="key")
app.add_typer(adapter.app, name="adapter")
app.add_typer(audit.app, name="audit")
app.add_typer(usage.app, name="usage")
app.command("migrate")(migrate.migrate)


class Shell:
    """Runs commands on one data directory and one database."""

    def __init__(self, data_dir: Path, database_url: str) -> None:
        self.data_dir = data_dir
        self.database_url = database_url

    def run(self, *arguments: str) -> Result:
        where = ("--data-dir", str(self.data_dir), "--database-url", self.database_url)
        return CliRunner().invoke(app, [*arguments, *where])

    def out(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def rows(self, *arguments: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out(*arguments, "--json").splitlines()]

    def failure(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 1, result.output
        assert result.stdout == ""
        return result.stderr
