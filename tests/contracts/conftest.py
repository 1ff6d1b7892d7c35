from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contracts.engine_pairs import MAX_EVENTS, Pair
from tests.contracts.quota_stores import Clock, OpenQuotas, memory_quotas, quotas_in
from tests.contracts.scripted_worker import ScriptedWorker
from tests.platform.scripted_engine import ScriptedEngine
from tests.platform.tiny_model import model_info
from tests.services.valkey import Valkey
from tests.services.valkey_cluster import ValkeyCluster

from loraplex.engine.client import EngineClient, Security, StreamClient
from loraplex.engine.frames import UnixAddress
from loraplex.tenants.quotas import Quotas


@pytest.fixture
def clock() -> Clock:
    return Clock()


STORES = ["memory", "redis", "redis without EVALSHA and SCRIPT", "cluster"]


@pytest.fixture(params=STORES)
def open_quotas(request: pytest.FixtureRequest) -> OpenQuotas:
    """Each implementation of the port."""
    match request.param:
        case "memory":
            return memory_quotas
        case "redis":
            valkey: Valkey = request.getfixturevalue("valkey")
            return quotas_in(valkey, valkey.url)
        case "cluster":
            cluster: ValkeyCluster = request.getfixturevalue("valkey_cluster")
            return quotas_in(cluster, cluster.url)
        case _:
            valkey = request.getfixturevalue("valkey")
            return quotas_in(valkey, valkey.url_without("evalsha", "script"))


@pytest.fixture
async def quotas(open_quotas: OpenQuotas, clock: Clock) -> AsyncIterator[Quotas]:
    async with open_quotas(clock) as quotas:
        yield quotas


@pytest.fixture(params=["scripted", "stream"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    if request.param == "scripted":
        engine = ScriptedEngine(model_info(), MAX_EVENTS)
        yield Pair(engine, engine)
        return
    worker = ScriptedWorker(tmp_path / "w.sock", model_info(), MAX_EVENTS)
    await worker.start()
    yield Pair(worker.client, worker)
    await worker.stop()


@pytest.fixture(params=["scripted", "stream"])
async def unconnected(request: pytest.FixtureRequest, tmp_path: Path) -> EngineClient:
    if request.param == "scripted":
        return ScriptedEngine(None)
    return StreamClient(UnixAddress(tmp_path / "none.sock"), Security(), MAX_EVENTS)
