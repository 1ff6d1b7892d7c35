"""Pins: what a tenant keeps in memory, within what it may."""

import asyncio

import pytest
from tests.adapters.shop import ME, Shop

from loraplex.adapters.registry import life_cycle, pins
from loraplex.adapters.registry.errors import ModelNotFound, PinLimitReached, VersionNotReady
from loraplex.adapters.registry.names import AdapterName
from loraplex.adapters.registry.pins import MemoryLimits, PinnedVersion


@pytest.fixture
async def shop(shop: Shop) -> Shop:
    """With two versions of `support`, of 1024 bytes each, of which the tenant may pin one."""
    for digest in ("d1", "d2"):
        await shop.publish(digest)
    await shop.limit(adapter_pin_bytes=1500)
    return shop


async def pinned(shop: Shop) -> list[PinnedVersion]:
    async with shop.database.reader() as session:
        return await pins.pinned(session)


async def test_a_pinned_version_is_listed_until_it_is_unpinned(shop: Shop) -> None:
    for _ in range(2):
        await shop.act(pins.pin, 1)
    assert await pinned(shop) == [PinnedVersion(shop.acme, "d1", 1024)]
    for _ in range(2):
        await shop.act(pins.unpin, 1)
    assert await pinned(shop) == []
    assert [event.action.rpartition(".")[2] for event in await shop.events()][-2:] == [
        "pin",
        "unpin",
    ]


async def test_pins_beyond_the_limit_are_refused_with_limit_and_use(shop: Shop) -> None:
    await shop.act(pins.pin, 1)
    with pytest.raises(PinLimitReached, match=r"1024 bytes, and 1024 of the 1500"):
        await shop.act(pins.pin, 2)


async def test_of_pins_at_once_only_those_hold_that_fit_together(shop: Shop) -> None:
    asked = [shop.act(pins.pin, number) for number in (1, 2)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(result, PinLimitReached) for result in results) == 1
    assert len(await pinned(shop)) == 1


async def test_equal_bytes_are_pinned_once(shop: Shop) -> None:
    await shop.publish("d1", name="copy")
    await shop.act(pins.pin, 1)
    async with shop.database.session() as session:
        name = AdapterName(shop.acme, "copy")
        await pins.pin(session, ME, name, 1)
    assert await pinned(shop) == [PinnedVersion(shop.acme, "d1", 1024)]


async def test_a_tenant_without_a_limit_pins_nothing(shop: Shop) -> None:
    await shop.publish("d1", tenant=shop.other)
    async with shop.database.session() as session:
        name = AdapterName(shop.other, "support")
        with pytest.raises(PinLimitReached):
            await pins.pin(session, ME, name, 1)


@pytest.mark.parametrize("end", ["retire", "delete"])
async def test_what_can_be_called_no_more_is_pinned_no_more(shop: Shop, end: str) -> None:
    await shop.act(pins.pin, 1)
    if end == "retire":
        await shop.act(life_cycle.retire, 1)
    else:
        await shop.act(life_cycle.delete_version, 1, "drain")
    assert await pinned(shop) == []
    with pytest.raises(VersionNotReady):
        await shop.act(pins.pin, 1)


async def test_only_versions_that_are_there_are_pinned(shop: Shop) -> None:
    with pytest.raises(ModelNotFound):
        await shop.act(pins.pin, 9)


async def test_floors_and_caps_are_listed_for_those_who_have_any(shop: Shop) -> None:
    await shop.limit(adapter_floor_bytes=10, adapter_cap_bytes=20)
    async with shop.database.reader() as session:
        assert await pins.memory_limits(session) == [MemoryLimits(shop.acme, 10, 20, 0, None)]
    await shop.limit(adapter_host_cap_bytes=30)
    async with shop.database.reader() as session:
        (limits,) = await pins.memory_limits(session)
    assert (limits.host_floor_bytes, limits.host_cap_bytes) == (0, 30)
