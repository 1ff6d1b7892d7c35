"""Prices, exports and their sums: what the API, the commands and the files say is the same."""

import asyncio
import csv
import hashlib
import json
import re
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from click.testing import Result
from sqlalchemy.ext.asyncio import AsyncSession
from tests.platform.conftest import PEPPER
from typer.testing import CliRunner

from loraplex.platform import billing_export
from loraplex.platform.app import create_app
from loraplex.platform.cli import admin_key, billing, migrate, price, tenant, usage
from loraplex.platform.services import Resources
from loraplex.tenants import admin_keys, api_keys, directory, ledger
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.db import Database
from loraplex.tenants.ledger import UsageRecord
from loraplex.tenants.prices import Price, TokenPrices, cost_pico, set_price
from loraplex.tenants.projects import default_project_id
from loraplex.tenants.tables import UsageRetention

NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC)
PRICE = TokenPrices(prompt_micros=150_001, cached_micros=15_001, completion_micros=600_007)

app = typer.Typer()
app.add_typer(tenant.app, name="tenant")
app.add_typer(usage.app, name="usage")
app.add_typer(price.app, name="price")
app.add_typer(billing.app, name="billing")
app.add_typer(admin_key.app, name="admin-key")
app.command("migrate")(migrate.migrate)


class Shell:
    """Runs commands on one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.out_dir = data_dir.with_name("out")

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--data-dir", str(self.data_dir)])

    def out(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out(*arguments, "--json").splitlines()]

    def failure(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 1, result.output
        return result.stderr

    def export(self, *arguments: str) -> dict[str, Any]:
        asked = ("--period", "2026-11", "--out", str(self.out_dir), *arguments)
        (manifest,) = self.rows("billing", "export", *asked)
        return manifest

    def do(self, work: Any) -> Any:
        async def on_database() -> Any:
            database = Database.open(f"sqlite+aiosqlite:///{self.data_dir / 'loraplex.db'}")
            try:
                async with database.session() as session:
                    return await work(session)
            finally:
                await database.close()

        return asyncio.run(on_database())


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path / "data")
    shell.out("migrate")
    for name in ("acme", "globex"):
        shell.out("tenant", "create", name)
    return shell


async def append(session: Any, owner: str, number: int, at: datetime, priced: Price | None) -> None:
    tenant = await directory.get_by_name(session, owner)
    key = await api_keys.mint(session, tenant, "", bytes(32), at, secrets.token_bytes)
    tokens = (100 + number, number, 3 * number)
    await ledger.append(
        session,
        UsageRecord(
            request_id=f"req_{number:03d}",
            tenant_id=tenant.id,
            project_id=default_project_id(tenant.id),
            key_id=key.key_id,
            requested_model="=HYPERLINK()" if number == 1 else "tiny",
            model="tiny",
            adapter_digest=None,
            prompt_tokens=tokens[0],
            cached_tokens=tokens[1],
            completion_tokens=tokens[2],
            finish_reason="stop",
            accepted_at=at,
            first_token_at=None,
            finished_at=at + timedelta(seconds=1),
            queue_ms=0.0,
            price_id=None if priced is None else priced.id,
            currency=None if priced is None else priced.currency,
            cost_pico=0 if priced is None else cost_pico(PRICE, *tokens),
        ),
    )


@pytest.fixture
def filled(shell: Shell) -> Shell:
    """Requests around the borders of November; two of them have no price."""

    async def fill(session: Any) -> None:
        euros = await set_price(
            session, "EUR", PRICE, NOVEMBER, Act(CLI, NOVEMBER), secrets.token_bytes
        )
        moment = timedelta(microseconds=1)
        december = datetime(2026, 12, 1, tzinfo=UTC)
        for number, (owner, at, priced) in enumerate(
            [
                ("acme", NOVEMBER - moment, None),
                ("acme", NOVEMBER, euros),
                ("globex", NOVEMBER + timedelta(days=9), euros),
                ("globex", december - moment, euros),
                ("acme", december - moment, None),
                ("acme", december, euros),
            ]
        ):
            await append(session, owner, number, at, priced)

    shell.do(fill)
    return shell


def read_rows(shell: Shell, kind: str) -> list[dict[str, Any]]:
    text = (shell.out_dir / f"usage.{kind}").read_text()
    if kind == "csv":
        return list(csv.DictReader(text.splitlines()))
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_an_export_has_the_rows_of_its_period_and_says_what_they_come_to(
    filled: Shell, kind: str
) -> None:
    manifest = filled.export("--format", kind)
    rows = read_rows(filled, kind)
    assert [row["request_id"] for row in rows] == ["req_001", "req_002", "req_003", "req_004"]
    content = (filled.out_dir / f"usage.{kind}").read_bytes()
    assert manifest == json.loads((filled.out_dir / "manifest.json").read_bytes())
    assert manifest["files"] == [
        {
            "name": f"usage.{kind}",
            "rows": 4,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    ]
    assert manifest["rows"] == 4
    is_over = manifest["made_at"] >= manifest["period"]["end"]
    assert manifest["period_complete"] == is_over
    assert manifest["period"]["start"] == "2026-11-01T00:00:00.000000Z"
    assert manifest["period"]["end"] == "2026-12-01T00:00:00.000000Z"
    total = sum(int(row["cost_pico"]) for row in rows)
    assert manifest["totals"]["cost"]["EUR"]["pico"] == str(total)
    assert manifest["totals"]["prompt_tokens"] == str(100 * 4 + 10)
    assert {path.name for path in filled.out_dir.iterdir()} == {f"usage.{kind}", "manifest.json"}


def test_times_are_in_utc_and_costs_are_decimal_text(filled: Shell) -> None:
    filled.export("--format", "jsonl")
    row = read_rows(filled, "jsonl")[0]
    assert row["schema_version"] == 1
    assert row["accepted_at"] == "2026-11-01T00:00:00.000000Z"
    assert re.fullmatch(r"[0-9]+", row["cost_pico"])
    assert row["cost"] == f"0.0000{row['cost_pico']}"
    assert row["first_token_at"] is None


def test_cells_that_a_spreadsheet_would_run_are_neutralised(filled: Shell) -> None:
    filled.export()
    assert read_rows(filled, "csv")[0]["requested_model"] == "'=HYPERLINK()"
    for start in "=+-@\t\r":
        assert billing_export._cell(f"{start}x") == f"'{start}x"
    assert billing_export._cell("x=") == "x="


def test_one_tenant_can_be_exported_alone(filled: Shell) -> None:
    manifest = filled.export("--tenant", "globex")
    assert (manifest["tenant"], manifest["rows"]) == ("globex", 2)
    assert {row["tenant"] for row in read_rows(filled, "csv")} == {"globex"}


def test_an_empty_period_is_an_export_too(shell: Shell) -> None:
    manifest = shell.export()
    assert (manifest["rows"], manifest["totals"]["cost"]) == (0, {})
    assert (shell.out_dir / "usage.csv").read_text().startswith("request_id,tenant,")


def test_a_period_of_which_usage_was_removed_is_exported_no_more(filled: Shell) -> None:
    filled.export()
    kept_from = datetime(2026, 12, 1, tzinfo=UTC)

    async def note(session: AsyncSession) -> None:
        session.add(UsageRetention(id=1, kept_from=kept_from))

    filled.do(note)
    filled.out_dir = filled.out_dir.with_name("again")
    asked = ("billing", "export", "--out", str(filled.out_dir), "--period")
    assert "2026-11 cannot be exported any more" in filled.failure(*asked, "2026-11")
    assert not filled.out_dir.exists()
    filled.out(*asked, "2026-12")


def test_a_folder_with_something_in_it_is_left_alone(filled: Shell) -> None:
    filled.export()
    before = (filled.out_dir / "manifest.json").read_bytes()
    asked = ("billing", "export", "--period", "2026-11", "--out", str(filled.out_dir))
    assert "exists already" in filled.failure(*asked)
    assert (filled.out_dir / "manifest.json").read_bytes() == before


def test_an_export_that_fails_leaves_nothing(
    filled: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(billing_export.RowFile, "finish", fails)
    asked = ("billing", "export", "--period", "2026-11", "--out", str(filled.out_dir))
    assert "No space left" in filled.failure(*asked)
    assert list(filled.out_dir.parent.iterdir()) == [filled.data_dir]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--period", "november"], "2026-11"),
        (["--period", "2026-11", "--tenant", "nobody"], "no tenant 'nobody'"),
    ],
)
def test_what_cannot_be_exported_is_told(shell: Shell, arguments: list[str], reason: str) -> None:
    error = shell.failure("billing", "export", "--out", str(shell.out_dir), *arguments)
    assert reason in error
    assert not shell.out_dir.exists()


def test_prices_are_set_and_listed_exactly(shell: Shell) -> None:
    said = shell.out("price", "set", "--currency", "EUR", "--prompt", "0.15", "--completion", "0.6")
    assert "0.15 EUR per million prompt tokens, 0.15 where they were cached, 0.6 per" in said
    (row,) = shell.rows(
        *("price", "set", "--currency", "EUR", "--prompt", "0.000001", "--cached", "0"),
        *("--completion", "2", "--valid-from", "2099-01-01T00:00:00"),
    )
    assert (row["prompt_micros"], row["cached_micros"], row["completion_micros"]) == (1, 0, 2000000)
    assert row["valid_from"] == "2099-01-01T00:00:00+00:00"
    assert shell.rows("price", "list")[0] == row
    assert shell.out("price", "list").splitlines()[1].split()[:5] == [
        "2099-01-01",
        "00:00:00",
        "EUR",
        "0.000001",
        "0",
    ]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--prompt", "0.0000001"], "six digits"),
        (["--prompt", "1", "--currency", "euro"], "EUR"),
        (["--prompt", "1", "--valid-from", "2020-01-01T00:00:00"], "past"),
        (["--prompt", "10001"], "prompt_micros"),
    ],
)
def test_a_price_that_cannot_be_is_told(shell: Shell, more: list[str], reason: str) -> None:
    arguments = ["price", "set", "--currency", "EUR", "--completion", "1", *more]
    assert reason in shell.failure(*arguments)
    assert "no prices" in shell.out("price", "list")


def test_an_admin_key_is_made_listed_and_revoked(shell: Shell) -> None:
    (made,) = shell.rows("admin-key", "create", "--label", "ops", "--expires-in-days", "1")
    assert re.fullmatch(r"lpxadm_\w{17}_\w{49}", made["key"])
    (listed,) = shell.rows("admin-key", "list")
    assert (listed["key_id"], listed["status"]) == (made["key_id"], "active")
    shell.out("admin-key", "revoke", made["key_id"])
    assert shell.rows("admin-key", "list")[0]["status"] == "revoked"
    assert "no admin key" in shell.failure("admin-key", "revoke", "nothing")
    assert made["key"] not in shell.out("admin-key", "list")
    assert shell.run("admin-key", "create").stdout.startswith("lpxadm_")


async def test_api_command_and_export_give_the_same_totals(
    filled: Shell, resources: Resources
) -> None:
    database = Database.open(f"sqlite+aiosqlite:///{filled.data_dir / 'loraplex.db'}")
    months = {"since": "2026-11-01T00:00:00Z", "until": "2026-12-01T00:00:00Z"}
    groups = await summaries(resources, database, months)
    await database.close()

    def in_thread() -> tuple[dict[str, Any], list[dict[str, Any]], str]:
        shown = []
        said = ""
        for name in ("acme", "globex"):
            asked = ("usage", "show", "--tenant", name, "--since", "2026-11-01T00:00:00")
            asked = (*asked, "--until", "2026-12-01T00:00:00")
            shown += filled.rows(*asked)
            said += filled.out(*asked)
        return filled.export(), shown, said

    manifest, shown, said = await asyncio.to_thread(in_thread)
    for by, data in groups.items():
        euros = [group for group in data if group["currency"] == "EUR"]
        total = str(sum(int(group["cost_pico"]) for group in euros))
        assert total == manifest["totals"]["cost"]["EUR"]["pico"], by
        assert sum(group["requests"] for group in data) == manifest["rows"] == len(shown)
        prompt_tokens = sum(group["prompt_tokens"] for group in data)
        assert str(prompt_tokens) == manifest["totals"]["prompt_tokens"]
    assert {group["key_id"] for group in groups["key"]} == {row["key_id"] for row in shown}
    assert {g["project_id"] for g in groups["project"]} == {row["project_id"] for row in shown}
    assert sum(row["prompt_tokens"] for row in shown) == prompt_tokens
    assert str(sum(int(row["cost_pico"]) for row in shown)) == total
    amounts = re.findall(r"tokens, ([0-9.]+) EUR", said)
    by_tenant = [g["cost"] for g in groups["tenant"] if g["currency"] == "EUR"]
    assert amounts == by_tenant


async def summaries(
    resources: Resources, database: Database, months: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """The API's summaries by each grouping, over another database."""
    app = create_app(replace(resources, database=database))
    async with database.session() as session:
        key = await admin_keys.mint(session, "", PEPPER, NOVEMBER, secrets.token_bytes)
    headers = {"authorization": f"Bearer {key.text}"}
    found = {}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://gateway", headers=headers
    ) as client:
        for by in ("tenant", "project", "key", "model", "hour", "day"):
            answer = await client.get("/admin/v1/usage/summary", params=months | {"group_by": by})
            found[by] = answer.json()["data"]
    return found


def test_a_command_in_a_wrong_folder_makes_nothing_there(tmp_path: Path) -> None:
    elsewhere = Shell(tmp_path / "elsewhere")
    for arguments in (
        ("tenant", "list"),
        ("tenant", "create", "acme"),
        ("usage", "show", "--tenant", "a"),
    ):
        told = elsewhere.failure(*arguments)
        assert "there is no database in" in told
        assert "--data-dir" in told
    assert not elsewhere.data_dir.exists()
