"""Deletions of adapters: what runs ends, or is ended; then bytes, memory and names are gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry
from tests.adapters import build
from tests.platform.conftest import Gateway, chat_body, error_of, make_tenant
from tests.platform.scripted_engine import ScriptedEngine, says
from tests.platform.test_uploads import upload
from tests.platform.tiny_model import model_info
from tests.platform.walking import FailingDatabase

from loraplex.adapters.registry import life_cycle, registry
from loraplex.adapters.registry.names import AdapterName
from loraplex.adapters.registry.registry import Standing
from loraplex.adapters.storage import AdapterStore
from loraplex.platform.app import create_app
from loraplex.platform.services import Resources, build_services
from loraplex.tenants import audit
from loraplex.tenants.directory import TenantRecord


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


@asynccontextmanager
async def gateway_on(
    resources: Resources, tenant: TenantRecord, key: str
) -> AsyncIterator[Gateway]:
    """One more gateway on the same database, with a worker of its own."""
    engine = ScriptedEngine(model_info())
    engine.answer = says("Hel", "lo")
    own = replace(resources, engine=engine, registry=CollectorRegistry())
    app = create_app(own)
    transport = httpx.ASGITransport(app)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app.router.lifespan_context(app))
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                transport=transport,
                base_url="http://second",
                headers={"authorization": f"Bearer {key}"},
            )
        )
        yield Gateway(app, engine, own, tenant, key, client)


async def standing(gateway: Gateway, number: int = 1) -> Standing:
    async with gateway.resources.database.reader() as session:
        name = AdapterName(gateway.tenant.id, "support")
        return (await registry.get_version(session, name, number)).standing


async def begin(gateway: Gateway, model: str = "acme/support") -> tuple[str, asyncio.Task]:
    """A request that runs until the test ends it."""
    gateway.engine.answer = None
    asked = asyncio.create_task(gateway.chat(model=model))
    request_id = (await gateway.engine.submitted()).request_id
    return request_id, asked


async def delete(gateway: Gateway, mode: str = "drain") -> None:
    response = await gateway.client.delete(f"/v1/adapters/support?mode={mode}")
    assert response.status_code == 202
    await sweep(gateway)


async def sweep(gateway: Gateway) -> None:
    await gateway.services.adapter_deletions.sweep()
    await gateway.resources.adapter_bytes.settled()


def watched(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """An event that is set after each sweep from now on."""
    deletions, swept = gateway.services.adapter_deletions, asyncio.Event()
    real = deletions.sweep

    async def watched_sweep() -> None:
        await real()
        swept.set()

    monkeypatch.setattr(deletions, "sweep", watched_sweep)
    return swept


async def deleted_by_itself(gateway: Gateway, swept: asyncio.Event) -> None:
    """Return when sweeps that nobody here asks for have deleted the version."""
    async with asyncio.timeout(15):
        while (await standing(gateway)).status != "deleted":
            await swept.wait()
            swept.clear()


async def test_a_deleted_adapter_leaves_the_store_the_worker_and_the_list(
    gateway: Gateway, tmp_path: Path
) -> None:
    digest = (await upload(gateway, build.save(tmp_path / "mine"))).json()["digest"]
    await delete(gateway)
    assert (await standing(gateway)).status == "deleted"
    assert gateway.engine.dropped[0] == (gateway.tenant.id, digest)
    assert not [*AdapterStore(tmp_path / "adapters")._root.glob(f"*/{digest}")]
    assert (await gateway.client.get("/v1/adapters")).json()["data"] == []
    shown = (await gateway.client.get("/v1/adapters/support")).json()
    assert [version["status"] for version in shown["versions"]] == ["deleted"]
    again = await upload(gateway, tmp_path / "mine")
    assert (again.json()["id"], again.json()["status"]) == ("acme/support@1", "ready")


async def test_a_request_in_flight_ends_by_itself_before_a_drained_version_is_deleted(
    gateway: Gateway,
) -> None:
    await gateway.publish("support", "d1")
    request_id, asked = await begin(gateway)
    await delete(gateway)
    assert (await standing(gateway)).deletion == "drain"
    assert gateway.engine.dropped == []
    assert (await gateway.chat(model="acme/support")).status_code == 404
    gateway.engine.emit(request_id, "whole")
    gateway.engine.finish(request_id)
    answer = await asked
    assert answer.json()["choices"][0]["message"]["content"] == "whole"
    await sweep(gateway)
    assert (await standing(gateway)).status == "deleted"


async def test_the_end_of_the_last_request_ends_a_deletion_without_waiting_for_a_sweep(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = watched(gateway, monkeypatch)
    await gateway.publish("support", "d1")
    request_id, asked = await begin(gateway)
    await delete(gateway)
    gateway.engine.finish(request_id)
    await asked
    await deleted_by_itself(gateway, swept)


async def test_a_forced_deletion_ends_its_requests_and_tells_them_so(gateway: Gateway) -> None:
    await gateway.publish("support", "d1")
    request_id, asked = await begin(gateway)
    gateway.engine.emit(request_id, "half")
    await delete(gateway, "force")
    answer = await asked
    assert (answer.status_code, error_of(answer)["code"]) == (409, "adapter_deleted")
    assert gateway.engine.aborted == [request_id]
    await gateway.assert_all_settled()
    (row,) = await gateway.usage()
    assert (row.finish_reason, row.completion_tokens) == ("abort", 1), "what ran is paid for"
    await sweep(gateway)
    assert (await standing(gateway)).status == "deleted"


async def test_a_stream_that_a_forced_deletion_ends_has_the_error_as_its_last_event(
    gateway: Gateway, server: str
) -> None:
    await gateway.publish("support", "d1")
    gateway.engine.answer = lambda engine, request_id: engine.emit(request_id, "half")
    body = chat_body(model="acme/support", stream=True)
    async with (
        httpx.AsyncClient(base_url=server, headers=gateway.headers) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as stream,
    ):
        lines = stream.aiter_lines()
        while "half" not in await anext(lines):
            pass
        await delete(gateway, "force")
        rest = [line async for line in lines if line]
    assert "adapter_deleted" in rest[-1]


async def test_a_request_that_is_not_yet_in_the_engine_is_ended_by_force_too(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.publish("support", "d1")
    encode = gateway.services.prompts.encode
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slow_encode(*asked: object) -> object:
        reached.set()
        await go_on.wait()
        return await encode(*asked)

    monkeypatch.setattr(gateway.services.prompts, "encode", slow_encode)
    asked = asyncio.create_task(gateway.chat(model="acme/support"))
    async with asyncio.timeout(60):
        await reached.wait()
    await delete(gateway, "force")
    assert (await standing(gateway)).status == "retired", "the request is known to be on it"
    go_on.set()
    answer = await asked
    assert (answer.status_code, error_of(answer)["code"]) == (409, "adapter_deleted")
    assert gateway.engine.runs == {}
    await gateway.assert_all_settled()
    await sweep(gateway)
    assert (await standing(gateway)).status == "deleted"


async def test_a_gateway_says_that_it_runs_while_its_sweep_waits(gateway: Gateway) -> None:
    await gateway.publish("support", "d1")
    clock_s = gateway.resources.clock() - 160
    own = replace(gateway.resources, clock=lambda: clock_s, registry=CollectorRegistry())
    deletions = build_services(own).adapter_deletions
    await deletions.say()
    await gateway.client.delete("/v1/adapters/support")
    with deletions._uses.use():  # of which nobody knows yet what it runs on
        sweeping = asyncio.create_task(deletions.sweep())
        clock_s += 160
        await deletions.say()
        await sweep(gateway)
        assert not sweeping.done()
        assert (await standing(gateway)).deletion == "drain", "the other one runs"
    await sweeping
    await sweep(gateway)
    assert (await standing(gateway)).status == "deleted"


async def test_a_gateways_works_that_must_not_wait_for_each_other_are_tasks(
    gateway: Gateway,
) -> None:
    running = {task.get_name() for task in asyncio.all_tasks()}
    assert {"gateway-lease", "adapter-deletions", "adapter-bytes", "adapter-pins"} <= running


async def test_the_worker_is_told_of_pins_again_after_each_drop(gateway: Gateway) -> None:
    """Between two looks a version was deleted, published and pinned again: to the gateway nothing
    has changed, but the worker has unpinned it."""
    await gateway.publish("support", "d1")
    pins, engine = gateway.services.adapter_pins, gateway.engine
    await pins.look()
    told = engine.pins
    await pins.look()
    assert engine.pins == told, "nothing has changed"
    await gateway.client.delete("/v1/adapters/support")
    await sweep(gateway)
    await gateway.publish("support", "d1")
    await pins.look()
    assert engine.pins.version > told.version
    assert structs.replace(engine.pins, version=told.version) == told


async def test_a_version_drains_on_all_gateways_before_its_bytes_go(
    gateway: Gateway, tmp_path: Path
) -> None:
    async with gateway_on(gateway.resources, gateway.tenant, gateway.key) as other:
        digest = (await upload(gateway, build.save(tmp_path / "mine"))).json()["digest"]
        request_id, asked = await begin(other)
        await delete(gateway)
        assert (await standing(gateway)).deletion == "drain"
        assert AdapterStore(tmp_path / "adapters").open(digest)
        assert (await other.chat(model="acme/support")).status_code == 404, "seen at once"
        await sweep(other)
        assert (await standing(gateway)).deletion == "drain", "it runs there"
        assert other.engine.dropped == []
        other.engine.finish(request_id)
        assert (await asked).status_code == 200
        await sweep(other)
        assert (await standing(gateway)).status == "deleted"
        key = (gateway.tenant.id, digest)
        assert key in gateway.engine.dropped
        assert key in other.engine.dropped


async def test_a_forced_deletion_ends_requests_on_another_gateway(gateway: Gateway) -> None:
    async with gateway_on(gateway.resources, gateway.tenant, gateway.key) as other:
        await gateway.publish("support", "d1")
        _, asked = await begin(other)
        await delete(gateway, "force")
        await sweep(other)
        assert error_of(await asked)["code"] == "adapter_deleted"
        await sweep(other)
        await sweep(gateway)
        assert (await standing(gateway)).status == "deleted"


async def test_a_flip_on_one_gateway_is_seen_by_the_next_request_on_another(
    gateway: Gateway,
) -> None:
    async with gateway_on(gateway.resources, gateway.tenant, gateway.key) as other:
        for digest in ("d1", "d2"):
            await gateway.publish("support", digest)
        for version in (1, 2, 1):
            path = "/v1/adapters/support/aliases/prod"
            await gateway.client.put(path, json={"version": version})
            answer = await other.chat(model="acme/support:prod")
            assert answer.headers["x-loraplex-model"] == f"acme/support@{version}"


async def test_a_gateway_that_has_ended_is_not_waited_for(gateway: Gateway) -> None:
    await gateway.publish("support", "d1")
    async with gateway_on(gateway.resources, gateway.tenant, gateway.key):
        pass
    await delete(gateway)
    assert (await standing(gateway)).status == "deleted"


async def test_what_a_killed_process_began_to_delete_is_finished_at_the_next_start(
    resources: Resources,
) -> None:
    tenant, key = await make_tenant(resources, "acme")
    async with gateway_on(resources, tenant, key) as killed:
        await killed.publish("support", "d1")
    async with resources.database.session() as session:
        act = life_cycle.Act(audit.CLI, resources.now())
        await life_cycle.delete_adapter(session, act, AdapterName(tenant.id, "support"), "drain")
    async with gateway_on(resources, tenant, key) as started:
        assert (await standing(started)).status == "deleted"


async def test_bytes_that_the_tenant_has_under_another_name_stay_in_the_worker(
    gateway: Gateway,
) -> None:
    await gateway.publish("support", "d1")
    await gateway.publish("copy", "d1")
    await delete(gateway)
    assert (await standing(gateway)).status == "deleted"
    assert gateway.engine.dropped == []
    assert (await gateway.chat(model="acme/copy")).status_code == 200


async def test_deletions_go_on_when_the_database_is_there_again(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = FailingDatabase(resources.database)
    tenant, key = await make_tenant(resources, "acme")
    own = replace(resources, database=database)
    app = create_app(own)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://g") as client,
    ):
        gateway = Gateway(app, resources.engine, own, tenant, key, client)
        await gateway.publish("support", "d1")
        headers = {"authorization": f"Bearer {key}"}
        swept = watched(gateway, monkeypatch)
        assert (await client.delete("/v1/adapters/support", headers=headers)).status_code == 202
        database.error = OSError("away")
        gateway.services.adapter_deletions.soon()
        await database.fail_times(1)
        database.error = None
        gateway.services.adapter_deletions.soon()
        await deleted_by_itself(gateway, swept)


async def test_requests_and_deletions_at_once_end_well_or_with_a_clear_error(
    gateway: Gateway, tmp_path: Path
) -> None:
    """Whatever the order: a request is answered by the version that it was resolved to, or told
    why not; and then nothing is left of what was deleted."""
    folder = build.save(tmp_path / "mine")
    async with gateway_on(gateway.resources, gateway.tenant, gateway.key) as other:
        for mode in ("drain", "force"):
            await upload(gateway, folder)
            asked = [(gateway, other)[i % 2].chat(model="acme/support") for i in range(8)]
            *answers, deleted, _ = await asyncio.gather(
                *asked,
                gateway.client.delete(f"/v1/adapters/support?mode={mode}"),
                sweep(other),
            )
            assert deleted.status_code == 202
            for answer in answers:
                told = answer.status_code, answer.json().get("error", {}).get("code")
                may_be = {(200, None), (404, "model_not_found"), (409, "adapter_deleted")}
                assert told in may_be
            for each in (gateway, other, gateway):
                await sweep(each)
            assert (await standing(gateway)).status == "deleted"
            assert not [*(tmp_path / "adapters").glob("*/*/*")]
