"""The commands for tenants, keys, adapters, usage and migrations, as an operator types them."""

import asyncio
import json
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.platform.shell import Shell, app
from typer.testing import CliRunner

from loraplex.tenants import api_keys, directory, ledger, stored_keys
from loraplex.tenants.db import Database
from loraplex.tenants.ledger import UsageRecord
from loraplex.tenants.projects import default_project_id

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HIDDEN = 8


@pytest.fixture
def shell(tmp_path: Path, database_url: str) -> Shell:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    return Shell(data_dir, database_url)


@pytest.fixture
def acme(shell: Shell) -> Shell:
    shell.out("tenant", "create", "acme")
    return shell


def test_a_tenant_is_listed_with_its_limits(shell: Shell) -> None:
    shell.out("tenant", "create", "acme", "--weight", "2", "--requests-per-minute", "5")
    header, line = shell.out("tenant", "list").splitlines()
    assert line.split()[:6] == ["acme", "active", "2", "5", "default", "default"]
    assert header.index("STATUS") == line.index("active")


def test_lists_for_programs_are_one_object_a_line(shell: Shell) -> None:
    assert shell.rows("tenant", "list") == []
    for name in ("b", "a"):
        shell.out("tenant", "create", name)
    assert [row["name"] for row in shell.rows("tenant", "list")] == ["a", "b"]


def test_a_tenant_can_be_suspended_and_resumed(acme: Shell) -> None:
    acme.out("tenant", "suspend", "acme")
    assert acme.rows("tenant", "list")[0]["status"] == "suspended"
    acme.out("tenant", "resume", "acme")
    assert acme.rows("tenant", "list")[0]["status"] == "active"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["tenant", "create", "acme"], "exists already"),
        (["tenant", "create", "Acme"], "not valid"),
        (["tenant", "create", "b", "--weight", "nan"], "weight"),
        (["tenant", "suspend", "nobody"], "no tenant 'nobody'"),
        (["key", "create", "nobody"], "no tenant 'nobody'"),
        (["key", "revoke", "acme", "nothing"], "no key 'nothing'"),
        (["usage", "show", "--tenant", "nobody"], "no tenant 'nobody'"),
        (["adapter", "list", "nobody"], "no tenant 'nobody'"),
        (["adapter", "push", "acme/a", "."], "loraplex serve"),
    ],
)
def test_an_expected_error_is_one_line(acme: Shell, arguments: list[str], reason: str) -> None:
    error = acme.failure(*arguments)
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert reason in error


@pytest.mark.parametrize(
    "arguments",
    [
        ["tenant", "create"],
        ["key", "list", "acme", "--nonsense"],
        ["usage", "show"],
        ["adapter", "push", "acme", "."],
        ["usage", "show", "--tenant", "a", "--limit", "0"],
    ],
)
def test_wrong_usage_exits_with_two(shell: Shell, arguments: list[str]) -> None:
    assert shell.run(*arguments).exit_code == 2


def test_an_unexpected_error_keeps_its_traceback(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "list_tenants", lambda _session: 1 / 0)
    assert isinstance(shell.run("tenant", "list").exception, ZeroDivisionError)


def test_a_new_key_alone_is_on_standard_output(acme: Shell) -> None:
    result = acme.run("key", "create", "acme")
    assert re.fullmatch(r"lpx_\w{17}_\w{49}\n", result.stdout)
    assert "shown once" in result.stderr


def test_a_new_key_authenticates_its_tenant(acme: Shell) -> None:
    async def verify() -> str:
        database = Database.open(acme.database_url)
        pepper = (acme.data_dir / "secret").read_bytes().strip()
        async with database.reader() as session:
            principal = await stored_keys.verify(session, str(made["key"]), pepper, NOON)
        await database.close()
        return principal.tenant_name

    (made,) = acme.rows("key", "create", "acme")
    assert asyncio.run(verify()) == made["tenant"] == "acme"


def test_keys_are_listed_with_their_status_and_without_themselves(acme: Shell) -> None:
    (first,) = acme.rows("key", "create", "acme", "--label", "ci", "--expires-in-days", "3")
    (second,) = acme.rows("key", "create", "acme")
    acme.out("key", "revoke", "acme", str(second["key_id"]))
    listed = {row["key_id"]: row for row in acme.rows("key", "list", "acme")}
    assert listed[first["key_id"]]["status"] == "active"
    assert listed[second["key_id"]]["status"] == "revoked"
    text = acme.out("key", "list", "acme")
    assert "ci" in text
    assert str(first["key"]) not in text


def test_no_key_is_made_with_a_secret_that_no_other_key_has(
    acme: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme.out("key", "create", "acme")
    monkeypatch.setenv("LORAPLEX_SECRET", "another secret" * 4)
    assert "not the one" in acme.failure("key", "create", "acme")


def add_usage(shell: Shell, count: int) -> None:
    """Append records of one request an hour."""

    async def add() -> None:
        database = Database.open(shell.database_url)
        async with database.session() as session:
            acme = await directory.get_by_name(session, "acme")
            made = await api_keys.mint(session, acme, "", bytes(32), NOON, secrets.token_bytes)
            for i in range(count):
                accepted_at = NOON + timedelta(hours=i)
                await ledger.append(
                    session,
                    UsageRecord(
                        request_id=f"r{i}",
                        tenant_id=acme.id,
                        project_id=default_project_id(acme.id),
                        key_id=made.key_id,
                        requested_model="acme/support",
                        model="acme/support@1",
                        adapter_digest="d1",
                        prompt_tokens=12,
                        cached_tokens=8,
                        completion_tokens=5,
                        finish_reason="stop",
                        accepted_at=accepted_at,
                        first_token_at=None,
                        finished_at=accepted_at + timedelta(seconds=1),
                        queue_ms=1.25,
                    ),
                )
        await database.close()

    asyncio.run(add())


def test_usage_for_programs_has_one_request_a_line(acme: Shell) -> None:
    add_usage(acme, 2)
    first, second = acme.rows("usage", "show", "--tenant", "acme")
    key_id = first.pop("key_id")
    assert first == {
        "request_id": "r0",
        "tenant": "acme",
        "model": "acme/support@1",
        "adapter_digest": "d1",
        "prompt_tokens": 12,
        "cached_tokens": 8,
        "completion_tokens": 5,
        "finish_reason": "stop",
        "accepted_at": "2026-03-01T12:00:00+00:00",
        "first_token_at": None,
        "finished_at": "2026-03-01T12:00:01+00:00",
        "queue_ms": 1.25,
        "price_id": None,
        "currency": None,
        "cost_pico": "0",
        "project_id": first["project_id"],
        "source": "measured",
        "billable": True,
        "service_tier": None,
        "output_digest": None,
    }
    assert (second["request_id"], second["key_id"]) == ("r1", key_id)


def test_usage_for_people_is_a_table(acme: Shell) -> None:
    add_usage(acme, 1)
    header, line, total = acme.out("usage", "show", "--tenant", "acme").splitlines()
    assert total.startswith("In all 1 request, 12 prompt tokens (8 cached), 5 output tokens")
    assert line.split() == [
        "2026-03-01",
        "12:00:00",
        "r0",
        "acme/support@1",
        "12",
        "8",
        "5",
        "stop",
        "1.2",
        "-",
    ]
    assert header.index("PROMPT") + len("PROMPT") == line.index("12  ") + 2


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_usage_is_selected_by_time_in_utc(acme: Shell) -> None:
    add_usage(acme, 3)
    hours = ("--since", "2026-03-01T13:00:00", "--until", "2026-03-01T14:00:00")
    rows = acme.rows("usage", "show", "--tenant", "acme", *hours)
    assert [row["request_id"] for row in rows] == ["r1"]


def test_usage_beyond_the_limit_is_left_out_with_a_note(acme: Shell) -> None:
    add_usage(acme, 3)
    result = acme.run("usage", "show", "--tenant", "acme", "--limit", "2", "--json")
    assert [json.loads(line)["request_id"] for line in result.stdout.splitlines()] == ["r1", "r2"]
    assert "newest 2" in result.stderr


def test_migrating_can_be_repeated(tmp_path: Path, empty_database_url: str) -> None:
    shell = Shell(tmp_path / "data", empty_database_url)
    assert "up to date" in shell.out("migrate")
    assert "up to date" in shell.out("migrate")


def test_a_server_that_is_away_is_an_expected_error_without_its_password(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "data", "postgresql+psycopg://u:hunter2@127.0.0.1:1/d")
    error = shell.failure("tenant", "list")
    assert error.startswith("error: The database postgresql+psycopg://u:***@127.0.0.1:1/d cannot")
    assert error.count("\n") == 1
    assert "hunter2" not in error


def test_settings_of_the_environment_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'elsewhere.db'}"
    monkeypatch.setenv("LORAPLEX_DATABASE_URL", url)
    result = CliRunner().invoke(app, ["migrate", "--data-dir", str(tmp_path)])
    assert url in result.stdout


def test_a_setting_that_is_wrong_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORAPLEX_PORT", "high")
    assert shell.failure("migrate").startswith("error: the settings are not valid: LORAPLEX_PORT")


def test_the_commands_import_nothing_heavy_before_one_runs() -> None:
    program = (
        "import sys; from loraplex.platform.cli import adapter, admin_key, billing, key, migrate; "
        "from loraplex.platform.cli import price, tenant, usage; "
        "print(*{'sqlalchemy', 'alembic', 'pydantic', 'numpy', 'torch'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
