"""`loraplex adapter warm`, beside a worker and through a gateway."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from tests.engine.simulated_worker import MODEL, running
from tests.platform.conftest import NOW
from typer.testing import CliRunner

from loraplex.adapters.registry.registry import Publication, publish
from loraplex.engine.frames import UnixAddress
from loraplex.platform.cli import adapter_warm, worker_access
from loraplex.platform.cli.main import app
from loraplex.tenants import directory
from loraplex.tenants.db import Database

WARMED = {
    "object": "adapter.hint",
    "adapter": "acme/support",
    "version": 3,
    "digest": "d3",
    "tier": "host",
    "expires_at": "2026-01-01T00:01:00Z",
}


def warm(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["adapter", "warm", *arguments])


@pytest.fixture
def gateway_hears(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    heard: list[tuple[object, ...]] = []

    def tell(*asked: object) -> dict[str, object]:
        heard.append(asked)
        return WARMED

    monkeypatch.setattr(adapter_warm, "_tell_gateway", tell)
    return heard


def test_warm_says_where_the_adapter_is_and_until_when(
    gateway_hears: list[tuple[object, ...]],
) -> None:
    result = warm("acme/support:prod", "--ttl", "90", "--url", "http://x", "--key-file", "k")
    assert result.stdout == (
        "acme/support@3 is on the host; it is brought to the device when that is worth it. "
        "The hint holds until 2026-01-01T00:01:00Z.\n"
    )
    assert gateway_hears == [("http://x", Path("k"), "acme/support:prod", 90)]


def test_warm_prints_the_answer_as_json(gateway_hears: list[tuple[object, ...]]) -> None:
    result = warm("acme/support", "--json", "--url", "http://x", "--key-file", "k")
    assert json.loads(result.stdout) == WARMED
    assert gateway_hears[0][-1] == 60


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["support"], "TENANT/NAME"),
        (["acme/support", "--ttl", "5"], "equal to 10"),
        (["acme/support", "--url", "http://x"], "--key-file"),
        (["acme/support", "--url", "ftp://x", "--key-file", __file__], "http://"),
        (["acme/support", "--url", "http://x", "--key-file", "/nowhere"], "cannot be read"),
        (["acme/support", "--url", "http://127.0.0.1:9", "--key-file", "KEY"], "cannot be asked"),
    ],
)
def test_warm_says_what_it_lacks(arguments: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("lpxadm_x")
    result = warm(*(str(tmp_path / "key") if a == "KEY" else a for a in arguments))
    assert result.exit_code != 0
    assert told in result.output


def test_warm_says_that_no_worker_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_access, "CONNECT_TIMEOUT_S", 0.1)
    assert CliRunner().invoke(app, ["migrate", "--data-dir", str(tmp_path)]).exit_code == 0
    result = warm("acme/support", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "no worker answers" in result.output


async def test_warm_tells_the_worker_beside_it_and_needs_no_key(tmp_path: Path) -> None:
    migrate = ["migrate", "--data-dir", str(tmp_path)]
    assert (await asyncio.to_thread(CliRunner().invoke, app, migrate)).exit_code == 0
    async with running(UnixAddress(tmp_path / "worker.sock")) as worker:
        tenant_id = await _publish(tmp_path, MODEL.name)
        result = await _in_thread(lambda: warm("acme/support", "--data-dir", str(tmp_path)))
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("acme/support@1 is ")
        await worker.step_where(lambda report: bool(report.arrivals))
        assert next(iter(worker.residency.status())).key == (tenant_id, "xx")
        result = await _in_thread(lambda: warm("acme/nothing", "--data-dir", str(tmp_path)))
        assert result.exit_code == 1
        assert "there is no adapter acme/nothing" in result.output


async def _in_thread(call: Callable[[], Result]) -> Result:
    return await asyncio.to_thread(call)


async def _publish(data_dir: Path, base_model: str) -> str:
    database = Database.open(f"sqlite+aiosqlite:///{data_dir / 'loraplex.db'}")
    async with database.session() as session:
        tenant = await directory.create(session, "acme", NOW, bytes)
        await publish(session, tenant.id, Publication("support", "xx", 8, 1000, base_model), NOW)
    await database.close()
    return tenant.id
