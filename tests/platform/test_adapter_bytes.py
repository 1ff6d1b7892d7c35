"""Bytes of adapters in the store: none without a version stays, however its upload ended."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.adapters import build
from tests.platform.conftest import NOW, Gateway, make_tenant
from tests.platform.test_uploads import upload
from tests.platform.walking import AWAY, FailingDatabase

from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.registry import byte_claims
from loraplex.adapters.storage import AdapterStore
from loraplex.platform.adapter_bytes import AdapterBytes
from loraplex.platform.errors import StorageUnavailable
from loraplex.platform.services import Resources
from loraplex.platform.uploads import publish

DAY_S = 86_400.0


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


def stored(folder: Path) -> list[str]:
    return [home.name for home in (folder / "adapters").glob("??/*")]


def change(resources: Resources, monkeypatch: pytest.MonkeyPatch, verify: Callable[..., Any]):
    """Let the self-test, for which the bytes lie in the store already, do this."""
    monkeypatch.setattr(resources.engine, "verify", verify)


async def test_an_upload_whose_client_leaves_after_its_bytes_were_stored_leaves_none(
    resources: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant, _ = await make_tenant(resources, "acme")
    reached = asyncio.Event()

    async def never(*_: object, **__: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    change(resources, monkeypatch, never)
    folder = build.save(tmp_path / "mine")
    uploading = asyncio.create_task(publish(resources, tenant.id, "support", folder))
    async with asyncio.timeout(60):
        await reached.wait()
    assert stored(tmp_path)
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    await resources.adapter_bytes.settled()
    assert stored(tmp_path) == []


async def test_an_upload_that_the_database_does_not_take_leaves_bytes_for_a_day_at_most(
    resources: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant, _ = await make_tenant(resources, "acme")
    database = FailingDatabase(resources.database)
    own = replace(resources, database=database)
    verify = own.engine.verify

    async def away(*args: Any, **options: Any) -> object:
        database.error = AWAY
        return await verify(*args, **options)

    change(own, monkeypatch, away)
    with pytest.raises(type(AWAY)):
        await publish(own, tenant.id, "support", build.save(tmp_path / "mine"))
    database.error = None
    (digest,) = stored(tmp_path)
    await swept(own, tmp_path, digest, age_s=DAY_S / 2)
    assert stored(tmp_path) == [digest], "it could still be on its way"
    await swept(own, tmp_path, digest, age_s=3 * DAY_S)
    assert stored(tmp_path) == []


async def swept(resources: Resources, folder: Path, digest: str, age_s: float) -> None:
    """Sweep when the bytes are so old."""
    modified_s = (folder / "adapters" / digest[:2] / digest).stat().st_mtime
    late = replace(resources, clock=lambda: modified_s + age_s)
    async with resources.database.session() as session:
        # Claims are made by the clock of the tests, which is not that of the files.
        await session.execute(
            byte_claims.BytesClaim.__table__.update().values(began_at=NOW.replace(year=2020))
        )
    await late.adapter_bytes.sweep()


async def test_a_sweep_leaves_what_any_tenant_has(gateway: Gateway, tmp_path: Path) -> None:
    digest = (await upload(gateway, build.save(tmp_path / "mine"))).json()["digest"]
    other = inspect(build.save(tmp_path / "other", {"lora_alpha": 3}), build.base())
    gateway.resources.store.put(other)
    assert set(stored(tmp_path)) == {digest, other.digest}
    (tmp_path / "adapters" / f".{digest}.0.partial").mkdir()
    await swept(gateway.resources, tmp_path, digest, age_s=3 * DAY_S)
    assert stored(tmp_path) == [digest]
    assert not list((tmp_path / "adapters").glob(".*"))


async def test_a_store_that_fails_does_not_keep_a_removal_from_being_done_later(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = (await upload(gateway, build.save(tmp_path / "mine"))).json()["digest"]
    resources = gateway.resources

    def fail(digest: str) -> None:
        raise OSError("the bucket is away")

    with monkeypatch.context() as patch:
        patch.setattr(resources.store, "remove", fail)
        await gateway.client.delete("/v1/adapters/support")
        await gateway.services.adapter_deletions.sweep()
        await resources.adapter_bytes.settled()
    assert stored(tmp_path) == [digest]
    await resources.adapter_bytes.retry()
    assert stored(tmp_path) == [digest], "somebody may still remove it"
    late = resources.clock() + 2 * byte_claims.REMOVE_LEASE.total_seconds()
    await replace(resources, clock=lambda: late).adapter_bytes.retry()
    assert stored(tmp_path) == []


async def test_while_bytes_are_removed_the_database_takes_writes_and_the_same_bytes_wait(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build.save(tmp_path / "mine")
    digest = (await upload(gateway, folder)).json()["digest"]
    store, is_asked, may_go_on = gateway.resources.store, asyncio.Event(), Event()
    loop, remove = asyncio.get_running_loop(), store.remove

    def slow(digest: str) -> None:
        loop.call_soon_threadsafe(is_asked.set)
        assert may_go_on.wait(60)
        remove(digest)

    monkeypatch.setattr(store, "remove", slow)
    await gateway.client.delete("/v1/adapters/support")
    await gateway.services.adapter_deletions.sweep()
    async with asyncio.timeout(60):
        await is_asked.wait()
    await gateway.make_tenant("other")
    elsewhere = replace(gateway.resources)
    with pytest.raises(byte_claims.BytesLeaving):
        await publish(elsewhere, gateway.tenant.id, "support", folder)
    again = asyncio.create_task(upload(gateway, folder))
    may_go_on.set()
    assert (await again).json()["status"] == "ready"
    assert stored(tmp_path) == [digest]


async def test_a_store_that_refuses_ends_the_claim(resources: Resources, tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(28, "no space left")

    store = AdapterStore(tmp_path / "adapters")
    adapter_bytes = AdapterBytes(resources.database, store, resources.now)
    with pytest.raises(StorageUnavailable):
        async with adapter_bytes.kept("d1", fail, lambda: None):
            raise AssertionError
    async with resources.database.session() as session:
        assert await byte_claims.begin_removal(session, "d1", NOW) is not None
