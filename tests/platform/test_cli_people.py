"""`loraplex person`, as an operator types it."""

from pathlib import Path

import pytest
from tests.platform.shell import Shell, app
from typer.testing import CliRunner


@pytest.fixture
def shell(tmp_path: Path, database_url: str) -> Shell:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    return Shell(data_dir, database_url)


def test_a_person_is_added_given_roles_and_kept_out(shell: Shell) -> None:
    shell.out("tenant", "create", "acme")
    shell.out("person", "add", "Ada@example.org", "--name", "Ada")
    shell.out("person", "grant", "ada@example.org", "owner")
    shell.out("person", "grant", "ada@example.org", "developer", "--tenant", "acme")
    (ada,) = shell.rows("person", "list")
    roles = [(one["tenant_name"], one["role"]) for one in ada["memberships"]]
    assert roles == [(None, "owner"), ("acme", "developer")]
    assert "owner, developer in acme" in shell.out("person", "list", "--tenant", "acme")
    assert "only one who owns" in shell.failure("person", "disable", "ada@example.org")
    assert "only one who owns" in shell.failure("person", "revoke", "ada@example.org")
    shell.out("person", "revoke", "ada@example.org", "--tenant", "acme")
    shell.out("person", "add", "bob@example.org")
    shell.out("person", "grant", "bob@example.org", "owner")
    shell.out("person", "disable", "ada@example.org")
    assert [p["status"] for p in shell.rows("person", "list")] == ["disabled", "active"]
    shell.out("person", "enable", "ada@example.org")
    assert "linked anew" in shell.out("person", "unlink", "ada@example.org")


def test_a_password_is_read_from_standard_input_and_never_shown(shell: Shell) -> None:
    shell.out("person", "add", "ada@example.org")
    where = ["--data-dir", str(shell.data_dir), "--database-url", shell.database_url]
    command = ["person", "password", "ada@example.org", "--stdin", *where]
    result = CliRunner().invoke(app, command, input="correct horse battery\n")
    assert result.exit_code == 0, result.output
    assert "correct horse" not in result.output
    (ada,) = shell.rows("person", "list")
    assert ada["has_password"]
    assert "password_hash" not in ada
    result = CliRunner().invoke(app, command, input="short\n")
    assert result.exit_code == 1
    assert "12 to 1000" in result.output
