"""A terminal on one data directory and one database, for tests of commands."""

import json
from collections.abc import Mapping
from pathlib import Path

import typer
from click.testing import Result
from typer.testing import CliRunner

from loraplex.platform.cli import (
    adapter,
    admin_key,
    audit,
    backup,
    billing,
    budget,
    key,
    limit,
    migrate,
    person,
    price,
    project,
    quota,
    tenant,
    usage,
)

app = typer.Typer()
app.add_typer(tenant.app, name="tenant")
app.add_typer(key.app, name="key")
app.add_typer(person.app, name="person")
app.add_typer(project.app, name="project")
app.add_typer(limit.app, name="limit")
app.add_typer(budget.app, name="budget")
app.add_typer(admin_key.app, name="admin-key")
app.add_typer(price.app, name="price")
app.add_typer(adapter.app, name="adapter")
app.add_typer(audit.app, name="audit")
app.add_typer(quota.app, name="quota")
app.add_typer(usage.app, name="usage")
app.add_typer(billing.app, name="billing")
app.command("migrate")(migrate.migrate)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)


class Shell:
    """Runs commands on one data directory and one database."""

    def __init__(
        self, data_dir: Path, database_url: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.data_dir = data_dir
        self.database_url = database_url
        self.environment = environment

    def run(self, *arguments: str) -> Result:
        where = ("--data-dir", str(self.data_dir), "--database-url", self.database_url)
        return CliRunner().invoke(app, [*arguments, *where], env=self.environment)

    def out(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    def rows(self, *arguments: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out(*arguments, "--json").splitlines()]

    def failure(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 1, result.output
        assert result.stdout == ""
        return result.stderr
