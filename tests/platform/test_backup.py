"""Backups are taken while requests run, and restored whole or not at all, on either database."""

import asyncio
import gzip
import json
import os
import re
import secrets
import shutil
import sqlite3
from asyncio import to_thread as in_thread
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import select
from tests.adapters import build
from tests.platform.conftest import NOW, PEPPER, Gateway
from tests.platform.scripted_engine import ScriptedEngine, says
from tests.platform.shell import Shell
from tests.platform.test_adapter_deletions import begin
from tests.platform.test_uploads import upload
from tests.platform.tiny_model import model_info

from loraplex.adapters.registry import gateways
from loraplex.adapters.storage import verify
from loraplex.platform.app import create_app
from loraplex.platform.backup import contents
from loraplex.platform.backup.verifying import check_contents, read_manifest
from loraplex.platform.backup.writing import BackupWriter
from loraplex.tenants import audit, budgets
from loraplex.tenants.audit import Act
from loraplex.tenants.budgets import Budget
from loraplex.tenants.db import Database
from loraplex.tenants.ledger import UsageRecord
from loraplex.tenants.prices import TokenPrices, set_price
from loraplex.tenants.quota_tables import BudgetEpoch

OLD_EPOCH = 3
PRICE = TokenPrices(prompt_micros=7, cached_micros=3, completion_micros=11)


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORAPLEX_SECRET", PEPPER.decode())


@dataclass
class Deployment:
    """A gateway that serves, and where its backup is to be."""

    gateway: Gateway
    shell: Shell
    backup: Path


@pytest.fixture
async def source(gateway: Gateway, tmp_path: Path) -> Deployment:
    """A gateway that has served, and serves still."""
    resources = gateway.resources
    async with resources.database.session() as session:
        await set_price(session, "EUR", PRICE, NOW, Act(audit.CLI, NOW), secrets.token_bytes)
        session.add(
            BudgetEpoch(
                tenant_id=gateway.tenant.id,
                scope="tenant",
                scope_id=gateway.tenant.id,
                dimension="tokens_per_month",
                period_start=NOW,
                epoch=OLD_EPOCH,
            )
        )
    assert (await upload(gateway, build.save(tmp_path / "mine"))).status_code == 201
    aliased = await gateway.client.put("/v1/adapters/support/aliases/prod", json={"version": 1})
    assert aliased.status_code in {200, 201}, aliased.text
    for model in ("tiny", "acme/support:prod"):
        assert (await gateway.chat(model=model)).status_code == 200
        await gateway.engine.submitted()
    shell = Shell(resources.settings.data_dir, resources.settings.resolved_database_url)
    return Deployment(gateway, shell, tmp_path / "backup")


@pytest.fixture
def elsewhere(
    request: pytest.FixtureRequest,
    database_url: str,
    tmp_path: Path,
) -> Shell:
    """An empty deployment on the other kind of database; one of them with a bucket."""
    data_dir = tmp_path / "elsewhere"
    data_dir.mkdir(mode=0o700)
    if database_url.startswith("sqlite"):
        s3 = request.getfixturevalue("s3")
        url = f"s3://{s3.make_bucket()}/adapters"
        environment = {**s3.environment, "LORAPLEX_ADAPTERS_URL": url}
        return Shell(data_dir, request.getfixturevalue("empty_postgres_url"), environment)
    return Shell(data_dir, f"sqlite+aiosqlite:///{data_dir / 'loraplex.db'}")


def exported(shell: Shell, out: Path) -> list[str]:
    shell.out("billing", "export", "--period", "2026-11", "--format", "jsonl", "--out", str(out))
    return [path.read_text() for path in sorted(out.glob("*.jsonl"))]


async def test_a_restored_deployment_serves_the_same_keys_adapters_usage_and_invoices(
    source: Deployment, elsewhere: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_id, asked = await begin(source.gateway)
    assert "1 adapter" in await in_thread(source.shell.out, "backup", str(source.backup))
    usage = await source.gateway.usage()
    events = await in_thread(source.shell.rows, "audit", "list")

    await in_thread(elsewhere.out, "restore", str(source.backup))

    assert len(usage) == 2
    restored = await in_thread(elsewhere.rows, "audit", "list")
    assert restored[1:] == events, "the log goes on where it was"
    assert restored[0]["action"] == "deployment.restore"
    invoices = [
        await in_thread(exported, shell, tmp_path / f"invoice-{number}")
        for number, shell in enumerate((source.shell, elsewhere))
    ]
    assert invoices[0] == invoices[1]
    assert await served_again(source.gateway, elsewhere, monkeypatch) == usage
    source.gateway.engine.finish(request_id)
    assert (await asked).status_code == 200, "requests run on while a backup is taken"


def another_budget(tenant_id: str) -> Budget:
    """One that was not in the backup."""
    december = datetime(2026, 12, 1, tzinfo=UTC)
    january = datetime(2027, 1, 1, tzinfo=UTC)
    return Budget(tenant_id, "tenant", tenant_id, "tokens_per_month", december, january)


async def served_again(
    before: Gateway, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> list[UsageRecord]:
    """Start a gateway on what was restored, use it as before, and return the usage it began with;
    all that was published before and all budgets are looked at on the way."""
    environment = shell.environment or {}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = before.resources.settings.model_copy(
        update={
            "data_dir": shell.data_dir,
            "database_url": shell.database_url,
            "adapters_url": environment.get("LORAPLEX_ADAPTERS_URL"),
        }
    )
    database, engine = Database.open(shell.database_url), ScriptedEngine(model_info())
    engine.answer = says("Hel", "lo")
    resources = replace(
        before.resources,
        settings=settings,
        database=database,
        engine=engine,
        registry=CollectorRegistry(),
    )
    app = create_app(resources)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=transport, base_url="http://restored", headers=before.headers
        ) as client,
    ):
        after = Gateway(app, engine, resources, before.tenant, before.key, client)
        usage = await after.usage()
        assert (await after.chat(model="acme/support:prod")).status_code == 200
        digest = (await engine.submitted()).adapter
        assert digest is not None
        verify(resources.store.open(digest), digest)
        async with database.reader() as session:
            epochs = list(await session.scalars(select(BudgetEpoch.epoch)))
        async with database.session() as session:
            raised = await budgets.raise_epochs(session, [another_budget(before.tenant.id)])
        epochs += raised.values()
        assert min(epochs) > 10**12, "no copy in a shared store can have such an epoch"
        assert len(await after.usage()) == len(usage) + 1
    await database.close()
    return usage


@pytest.fixture
async def taken(source: Deployment) -> Deployment:
    """A backup that was taken."""
    await in_thread(source.shell.out, "backup", str(source.backup))
    return source


def truncated(backup: Path) -> None:
    path = backup / "tables" / "usage.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-9])


def without_an_adapter(backup: Path) -> None:
    shutil.rmtree(next((backup / "adapters").iterdir()))


def another_row(backup: Path) -> None:
    path = backup / "tables" / "usage.jsonl.gz"
    rows = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(rows.replace(b"stop", b"abor"), mtime=0))


def another_row_and_its_sum(backup: Path) -> None:
    another_row(backup)
    part = contents.part_of(backup / "tables" / "usage.jsonl.gz")
    path = backup / "manifest.json"
    manifest = json.loads(path.read_text())
    (usage,) = [table for table in manifest["tables"] if table["name"] == "usage"]
    usage["file"] = {"bytes": part.num_bytes, "sha256": part.sha256}
    path.write_text(json.dumps(manifest))


def another_seal(backup: Path) -> None:
    (backup / "manifest.hmac").write_text("é")


def another_revision(backup: Path) -> None:
    path = backup / "manifest.json"
    data = path.read_bytes().replace(b'"revision": "', b'"revision": "9')
    path.write_bytes(data)
    (backup / "manifest.hmac").write_text(contents.seal(data, PEPPER))


def another_format(backup: Path) -> None:
    path = backup / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))


def no_manifest(backup: Path) -> None:
    (backup / "manifest.json").unlink()


SPOILT: Mapping[Callable[[Path], None], str] = {
    truncated: "The backup is not whole",
    without_an_adapter: "cannot be read",
    another_row: "is not what was backed up|is not whole",
    another_row_and_its_sum: "was changed after the backup was taken",
    another_seal: "was changed after the backup was taken",
    another_revision: "of revision 9",
    another_format: "has format 2",
    no_manifest: "is no backup",
}


async def test_what_is_not_the_whole_backup_is_refused_and_nothing_is_restored(
    taken: Deployment, elsewhere: Shell, tmp_path: Path
) -> None:
    for spoil, reason in SPOILT.items():
        copy = tmp_path / spoil.__name__
        shutil.copytree(taken.backup, copy)
        spoil(copy)
        restore = ("restore", str(copy))
        assert re.search(reason, await in_thread(elsewhere.failure, *restore))
        if spoil is not another_revision:  # which is whole
            assert re.search(reason, await in_thread(elsewhere.failure, *restore, "--verify"))
    assert await in_thread(elsewhere.rows, "tenant", "list") == []


async def test_a_backup_is_restored_only_where_its_secret_is_and_nothing_else(
    taken: Deployment, elsewhere: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    await in_thread(elsewhere.out, "migrate")
    restore = ("restore", str(taken.backup))
    assert "is whole" in await in_thread(elsewhere.out, *restore, "--verify")
    monkeypatch.delenv("LORAPLEX_SECRET")
    assert "there is no secret" in await in_thread(elsewhere.failure, *restore)
    monkeypatch.setenv("LORAPLEX_SECRET", "q" * 32)
    assert "another secret" in await in_thread(elsewhere.failure, *restore)
    monkeypatch.setenv("LORAPLEX_SECRET", PEPPER.decode())
    database = Database.open(elsewhere.database_url)
    async with database.session() as session:
        await gateways.say_running(session, "gtw_1", datetime.now(UTC))
    assert "gtw_1 runs" in await in_thread(elsewhere.failure, *restore)
    async with database.session() as session:
        await gateways.leave(session, "gtw_1")
    await database.close()
    await in_thread(elsewhere.out, *restore)
    assert [row["name"] for row in await in_thread(elsewhere.rows, "tenant", "list")] == ["acme"]
    assert "not empty" in await in_thread(elsewhere.failure, *restore)


async def test_a_backup_that_fails_leaves_nothing_and_one_that_exists_stays(
    taken: Deployment, tmp_path: Path
) -> None:
    assert "exists already" in await in_thread(taken.shell.failure, "backup", str(taken.backup))
    (adapter,) = (taken.backup / "adapters").iterdir()
    taken.gateway.resources.store.remove(adapter.name)
    other = tmp_path / "other"
    assert adapter.name in await in_thread(taken.shell.failure, "backup", str(other))
    assert [name for name in os.listdir(tmp_path) if "other" in name] == []  # noqa: PTH208  as is


async def test_of_two_backups_to_one_place_at_once_one_is_there_and_whole(
    source: Deployment,
) -> None:
    resources = source.gateway.resources
    writers = [
        BackupWriter(resources.database, resources.store, PEPPER, NOW, lambda _: None)
        for _ in range(2)
    ]
    writing = (writer.write(source.backup) for writer in writers)
    outcomes = await asyncio.gather(*writing, return_exceptions=True)
    (manifest,) = [outcome for outcome in outcomes if isinstance(outcome, contents.Manifest)]
    assert read_manifest(source.backup, PEPPER) == manifest
    check_contents(source.backup, manifest, lambda _: None)
    assert [path.name for path in source.backup.parent.glob("*.partial")] == []


def test_every_table_is_backed_up_or_left_out_by_name(migrated_file: Path) -> None:
    with sqlite3.connect(migrated_file) as database:
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    there = {name for (name,) in rows} - {"alembic_version", "sqlite_sequence"}
    backed_up = {table.name for table in contents.backed_up_tables()}
    assert backed_up | contents.LEFT_OUT == there
    assert not backed_up & contents.LEFT_OUT
