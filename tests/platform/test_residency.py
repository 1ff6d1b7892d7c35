"""Pins, floors and caps on their way to the worker; what is where on its way to the operator."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result
from sqlalchemy import update
from tests.engine.simulated_worker import running
from tests.platform.conftest import Gateway
from typer.testing import CliRunner

from loraplex.adapters.registry.tables import Adapter, AdapterVersion
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.frames import UnixAddress
from loraplex.engine.residency_protocol import (
    AdapterRow,
    ColdStatus,
    EvictedRow,
    LinkStatus,
    Pin,
    PrefetchTotals,
    ResidencyReport,
    SinceStart,
    TierTotals,
)
from loraplex.platform.adapter_pins import AdapterPins
from loraplex.platform.cli import adapter_top, worker_access
from loraplex.platform.cli.main import app
from loraplex.tenants.tables import Tenant

NOW = datetime(2026, 11, 30, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64


async def publish(gateway: Gateway, number: int = 1, *, is_pinned: bool = True) -> None:
    async with gateway.resources.database.session() as session:
        adapter = Adapter(tenant_id=gateway.tenant.id, name=f"support-{number}", created_at=NOW)
        session.add(adapter)
        await session.flush()
        version = AdapterVersion(
            adapter_id=adapter.id,
            number=number,
            digest=DIGEST,
            rank=8,
            num_bytes=1000,
            base_model="tiny",
            created_at=NOW,
            is_pinned=is_pinned,
        )
        session.add(version)


def report(gateway: Gateway) -> ResidencyReport:
    """The tenant's adapter, loading by a half, and one that nobody knows."""
    loading = AdapterRow(
        tenant=gateway.tenant.id,
        adapter=DIGEST,
        tier="loading",
        why="awaited",
        device_bytes=2000,
        host_bytes=1000,
        leases=1,
        num_waiting=2,
        loaded=0.5,
        is_pinned=True,
        idle_s=None,
    )
    unknown = AdapterRow(
        tenant="nobody",
        adapter="sha256:b",
        tier="host",
        why="kept",
        device_bytes=0,
        host_bytes=30,
        leases=0,
        num_waiting=0,
        loaded=None,
        is_pinned=False,
        idle_s=None,
    )
    return ResidencyReport(
        query_id=0,
        device=TierTotals(capacity_bytes=10_000, held_bytes=2000, num_adapters=1),
        host=TierTotals(capacity_bytes=20_000, held_bytes=1030, num_adapters=2),
        adapters=(loading, unknown),
        since_start=SinceStart(
            routes={"resident": 90, "layer-wise": 9, "assist": 1},
            loads={"host": 12},
            prefetches=PrefetchTotals(num_started=3, num_claimed=2, wasted_bytes=7),
            evictions={"device": {"kv": 2}},
        ),
        cold=ColdStatus(
            link=LinkStatus(limit_bytes_per_s=5e8, in_flight_bytes=1000),
            num_passes=2,
            num_assistants=4,
        ),
        last_evictions=(
            EvictedRow(
                tenant=gateway.tenant.id, adapter=DIGEST, tier="host", cause="drop", ago_s=1.5
            ),
        ),
        pins_version=3,
        refused_pins=(Pin(gateway.tenant.id, DIGEST),),
        refused_floors=(gateway.tenant.id,),
        refused_host_floors=(gateway.tenant.id,),
    )


async def test_what_the_database_says_of_pins_goes_to_the_worker_when_it_changes(
    gateway: Gateway,
) -> None:
    resources, times = gateway.resources, iter((10.0, 20.0, 30.0))
    pins = AdapterPins(resources.database, resources.engine, lambda: next(times))
    await publish(gateway)
    await pins.look()
    first = gateway.engine.pins
    assert first is not None
    assert (first.version, first.pinned) == (10_000_000, (Pin(gateway.tenant.id, DIGEST),))
    await pins.look()
    assert gateway.engine.pins is first, "nothing has changed"
    async with resources.database.session() as session:
        limits = {"adapter_floor_bytes": 5, "adapter_cap_bytes": 9}
        of_host = {"adapter_host_floor_bytes": 6, "adapter_host_cap_bytes": 10}
        await session.execute(update(Tenant).values(**limits, **of_host))
    await pins.look()
    second = gateway.engine.pins
    assert second is not None
    assert second.version == 30_000_000
    assert (second.floors, second.caps) == ({gateway.tenant.id: 5}, {gateway.tenant.id: 9})
    assert second.host_floors == {gateway.tenant.id: 6}
    assert second.host_caps == {gateway.tenant.id: 10}


async def test_an_operator_sees_what_is_where_by_the_names_that_people_know(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    await publish(gateway, 2)
    gateway.engine.report = report(gateway)
    name = gateway.tenant.name
    answer = (await admin.get("/residency")).json()
    device = {"capacity_bytes": 10_000, "held_bytes": 2000, "num_adapters": 1}
    assert answer["tiers"]["device"] == device
    known = {"tenant": name, "model": f"{name}/support-2@2", "digest": DIGEST}
    loading, unknown = answer["adapters"]
    assert loading == known | {
        "tier": "loading",
        "why": "awaited",
        "device_bytes": 2000,
        "host_bytes": 1000,
        "leases": 1,
        "num_waiting": 2,
        "loaded_percent": 50,
        "is_pinned": True,
        "idle_s": None,
    }
    assert (unknown["tenant"], unknown["model"]) == ("nobody", None)
    since = answer["since_start"]
    assert since["routes"] == {
        "resident": 90,
        "prefetch": 0,
        "wait": 0,
        "join": 0,
        "layer-wise": 9,
        "assist": 1,
    }
    assert since["loads"] == {"store": 0, "host": 12}
    prefetches = {"num_started": 3, "num_claimed": 2, "num_wasted": 0, "wasted_bytes": 7}
    assert since["prefetches"] == prefetches
    assert since["evictions"] == {
        "device": {"load": 0, "prefetch": 0, "kv": 2, "drop": 0},
        "host": {"load": 0, "drop": 0},
    }
    link = {"limit_bytes_per_s": 5e8, "measured_bytes_per_s": None, "in_flight_bytes": 1000}
    assert answer["link"] == link
    assert (answer["num_cold_passes"], answer["num_assistants"]) == (2, 4)
    gone = {"tier": "host", "cause": "drop", "ago_s": 1.5}
    assert answer["last_evictions"] == [known | gone]
    assert answer["refused"] == {"pins": [known], "floors": [name], "host_floors": [name]}


async def test_without_a_worker_the_operator_is_told_so(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    gateway.engine.is_connected = False
    response = await admin.get("/residency")
    assert response.status_code == 503


def top(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["adapter", "top", *arguments])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What a gateway would answer."""
    adapter = {
        "tenant": "acme",
        "model": "acme/support@3",
        "digest": DIGEST,
        "tier": "loading",
        "why": "awaited",
        "device_bytes": 2 << 20,
        "host_bytes": 1 << 20,
        "leases": 1,
        "num_waiting": 2,
        "loaded_percent": 50,
        "is_pinned": True,
        "idle_s": 1.25,
    }
    tier = {"capacity_bytes": 8 << 20, "held_bytes": 2 << 20, "num_adapters": 1}
    refused = {"pins": [], "floors": ["globex"], "host_floors": ["globex"]}
    names = {"tenant": "acme", "model": "acme/mail@1", "digest": DIGEST}
    document = {
        "tiers": {"device": tier, "host": tier},
        "adapters": [adapter],
        "since_start": {
            "routes": {"resident": 90, "prefetch": 0, "wait": 0, "layer-wise": 9, "assist": 1},
            "loads": {"store": 3, "host": 1200},
            "prefetches": {"num_started": 4, "num_claimed": 2, "num_wasted": 1, "wasted_bytes": 9},
            "evictions": {"device": {"load": 7, "kv": 0}, "host": {"drop": 1}},
        },
        "link": {
            "limit_bytes_per_s": 512 << 20,
            "measured_bytes_per_s": None,
            "in_flight_bytes": 1 << 20,
        },
        "num_cold_passes": 2,
        "num_assistants": 4,
        "last_evictions": [names | {"tier": "device", "cause": "load", "ago_s": 1.25}] * 9,
        "refused": refused,
    }
    monkeypatch.setattr(adapter_top, "_of_gateway", lambda *_: lambda: document)
    return document


def test_top_prints_json_once_and_ends(seen: dict[str, object]) -> None:
    result = top("--json", "--url", "http://x", "--key-file", "k")
    assert result.exit_code == 0, result.output
    assert [json.loads(line) for line in result.stdout.splitlines()] == [seen]


def test_top_prints_a_table_for_people(seen: dict[str, object]) -> None:
    lines = top("--url", "http://x", "--key-file", "k").stdout.splitlines()
    assert lines[0] == "device  2.0 of 8.0 MiB, 1 adapters"
    assert "no floor, since it would take too much: globex" in lines
    assert "no floor of the host, since it would take too much: globex" in lines
    routes = "routes  resident 90 (90 %), layer-wise 9 (9 %), assist 1 (1 %)"
    assert routes in lines
    assert (
        "link    not measured yet, throttled to 512.0 MiB/s, 1.0 MiB on their way, "
        "2 requests computed meanwhile, 4 assist processes ready"
    ) in lines
    assert (
        "loads   3 from the store, 1,200 from the host; prefetches 4: 2 needed, 1 wasted"
    ) in lines
    assert "evicted device: load 7, host: drop 1" in lines
    assert sum("acme/mail@1 from device (load), 1.2 s ago" in line for line in lines) == 5
    assert lines[-1].split() == [
        *("acme/support@3", "loading", "50", "%", "awaited,", "pinned"),
        *("2", "1", "1", "2", "1.2"),
    ]


def test_top_says_that_nothing_has_happened_yet(seen: dict[str, Any]) -> None:
    since = seen["since_start"]
    since["routes"], since["evictions"] = {"resident": 0}, {"device": {"load": 0}}
    seen["link"] = {"limit_bytes_per_s": None, "measured_bytes_per_s": 3e9, "in_flight_bytes": 0}
    lines = top("--url", "http://x", "--key-file", "k").stdout.splitlines()
    assert "routes  no request ran on an adapter yet" in lines
    assert "evicted nothing yet" in lines
    assert any(line.startswith("link    2,861.0 MiB/s of late, not throttled, ") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--url", "http://x"], "--key-file"),
        (["--url", "ftp://x", "--key-file", __file__], "http://"),
        (["--url", "http://x", "--key-file", "/nowhere"], "cannot be read"),
        (["--url", "http://127.0.0.1:9", "--key-file", __file__ + "/../tiny_key"], "cannot be"),
    ],
)
def test_top_says_what_it_lacks(arguments: list[str], told: str) -> None:
    result = top(*arguments)
    assert result.exit_code != 0
    assert told in result.output


def test_top_says_that_no_worker_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_access, "CONNECT_TIMEOUT_S", 0.1)
    assert CliRunner().invoke(app, ["migrate", "--data-dir", str(tmp_path)]).exit_code == 0
    result = top("--once", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "no worker answers" in result.output


async def test_top_asks_the_worker_beside_it_and_needs_no_key(tmp_path: Path) -> None:
    migrate = ["migrate", "--data-dir", str(tmp_path)]
    assert (await asyncio.to_thread(CliRunner().invoke, app, migrate)).exit_code == 0
    async with running(UnixAddress(tmp_path / "worker.sock")) as worker:
        worker.residency.start_load(AdapterKey("t", "xxx"), 3)
        worker.residency.finish_load(AdapterKey("t", "xxx"))
        result = await asyncio.to_thread(top, "--json", "--data-dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    seen = json.loads(result.stdout)
    assert seen["tiers"]["device"]["held_bytes"] == 3
    (found,) = seen["adapters"]
    assert (found["tenant"], found["model"], found["digest"]) == ("t", None, "xxx")
