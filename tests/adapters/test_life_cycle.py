"""The life of a version: found by new requests, by none, gone; whoever dies on the way."""

import asyncio

import pytest
from tests.adapters.shop import LONG_AGO, ME, NOW, SOON, Shop

from loraplex.adapters.registry import aliases, gateways, life_cycle, registry
from loraplex.adapters.registry.errors import (
    AdapterTooLarge,
    ModelNotFound,
    StorageLimitReached,
    VersionInUse,
    VersionNotReady,
)
from loraplex.adapters.registry.names import AdapterName
from loraplex.adapters.registry.registry import Publication


async def test_a_retired_version_is_told_as_an_absent_one(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.publish("d2")
    await shop.act(life_cycle.retire, 2)
    assert (await shop.resolve("acme/support")).version == 1
    with pytest.raises(ModelNotFound):
        await shop.resolve("acme/support@2")


async def test_a_restored_version_is_found_again(shop: Shop) -> None:
    await shop.publish("d1")
    for _ in range(2):
        await shop.act(life_cycle.retire, 1)
    for _ in range(2):
        await shop.act(life_cycle.restore, 1)
    assert (await shop.resolve("acme/support")).version == 1
    assert (await shop.actions())[1:] == ["adapter.version.retire", "adapter.version.restore"]


async def test_a_version_that_an_alias_means_stays_unless_forced(shop: Shop) -> None:
    for digest in ("d1", "d2", "d3"):
        await shop.publish(digest)
    await shop.point("prod", 1)
    await shop.canary("prod", 2, 10)
    for number in (1, 2):
        with pytest.raises(VersionInUse, match="the alias prod"):
            await shop.act(life_cycle.retire, number)
        with pytest.raises(VersionInUse, match="the alias prod"):
            await shop.act(life_cycle.delete_version, number, "drain")
    await shop.act(life_cycle.retire, 2, force=True)
    async with shop.database.reader() as session:
        assert (await aliases.get_alias(session, shop.support, "prod")).canary is None
    await shop.act(life_cycle.delete_version, 1, "force")
    async with shop.database.reader() as session:
        assert await aliases.list_aliases(session, shop.acme) == []


async def test_an_alias_that_meant_a_version_before_does_not_keep_it(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.publish("d2")
    await shop.point("prod", 1)
    await shop.point("prod", 2)
    await shop.act(life_cycle.delete_version, 1, "drain")
    async with shop.database.reader() as session:
        assert (await aliases.get_alias(session, shop.support, "prod")).previous is None


@pytest.mark.parametrize("mode", ["drain", "force"])
async def test_a_version_without_requests_is_deleted_with_its_bytes(shop: Shop, mode: str) -> None:
    await shop.publish("d1")
    await shop.act(life_cycle.delete_version, 1, mode)
    with pytest.raises(ModelNotFound):
        await shop.resolve("acme/support@1")
    assert (await shop.version(1)).standing.deletion == mode
    assert await shop.finish_all() == ["acme/support@1"]
    version = await shop.version(1)
    assert (version.standing.status, version.standing.deleted_at) == ("deleted", NOW)
    assert shop.stored == set()
    async with shop.database.reader() as session:
        assert await registry.list_versions(session, shop.acme) == []


async def test_a_deletion_waits_until_each_gateway_that_runs_has_cleared_it(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.act(life_cycle.delete_version, 1, "drain")
    async with shop.database.reader() as session:
        (deletion,) = await life_cycle.list_deletions(session)
    await shop.say("g1", deletion.id)
    await shop.say("g2")
    assert await shop.finish_all() == []
    assert shop.stored == {"d1"}
    await shop.say("g2", deletion.id)
    assert await shop.finish_all() == ["acme/support@1"]


async def test_what_a_gateway_cleared_of_one_deletion_says_nothing_of_the_next(shop: Shop) -> None:
    await shop.publish("d1")
    for is_cleared in (True, False):
        await shop.act(life_cycle.delete_version, 1, "drain")
        async with shop.database.reader() as session:
            (deletion,) = await life_cycle.list_deletions(session)
        if is_cleared:
            await shop.say("g1", deletion.id)
            assert await shop.finish_all() == ["acme/support@1"]
            assert (await shop.publish("d1")).version == 1
    assert await shop.finish_all() == [], "g1 may have requests on it again"
    assert shop.stored == {"d1"}
    await shop.say("g1", deletion.id)
    assert await shop.finish_all() == ["acme/support@1"]


async def test_a_gateway_that_only_says_that_it_runs_has_cleared_what_it_had(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.act(life_cycle.delete_version, 1, "drain")
    async with shop.database.reader() as session:
        (deletion,) = await life_cycle.list_deletions(session)
    await shop.say("g1", deletion.id, at=LONG_AGO)
    async with shop.database.session() as session:
        await gateways.say_running(session, "g1", NOW)
        await gateways.say_running(session, "g2", NOW)
    assert await shop.finish_all() == [], "g2 has cleared nothing"
    await shop.say("g2", deletion.id)
    assert await shop.finish_all() == ["acme/support@1"]


async def test_a_gateway_that_was_killed_or_has_left_is_not_waited_for(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.say("killed", at=LONG_AGO)
    await shop.say("left")
    async with shop.database.session() as session:
        await gateways.leave(session, "left")
    await shop.act(life_cycle.delete_version, 1, "drain")
    assert await shop.finish_all() == ["acme/support@1"]


async def test_a_deletion_is_finished_once_and_may_be_asked_for_again(shop: Shop) -> None:
    await shop.publish("d1")
    for _ in range(2):
        await shop.act(life_cycle.delete_version, 1, "drain")
    await shop.act(life_cycle.delete_version, 1, "force")
    await shop.act(life_cycle.delete_version, 1, "drain")
    assert (await shop.version(1)).standing.deletion == "force", "who forces is not overruled"
    assert await asyncio.gather(*(shop.finish_all() for _ in range(4)))
    await shop.act(life_cycle.delete_version, 1, "force")
    told = [event.action.rpartition(".")[2] for event in await shop.events()]
    assert told == ["publish", "delete", "delete", "deleted"]


async def test_bytes_that_another_version_names_stay(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.publish("d1", name="sales")
    await shop.publish("d1", tenant=shop.other)
    await shop.act(life_cycle.delete_adapter, "drain")
    assert await shop.finish_all() == ["acme/support@1"]
    assert shop.stored == {"d1"}
    assert (await shop.resolve("acme/sales")).digest == "d1"
    assert (await shop.resolve("other/support", tenant=shop.other)).digest == "d1"


async def test_a_deletion_tells_whether_the_tenant_has_the_bytes_elsewhere(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.publish("d1", tenant=shop.other)
    await shop.publish("d2")
    await shop.publish("d2", name="sales")
    await shop.act(life_cycle.delete_adapter, "drain")
    async with shop.database.reader() as session:
        deletions = await life_cycle.list_deletions(session)
    assert [(d.model, d.is_shared) for d in deletions] == [
        ("acme/support@1", False),
        ("acme/support@2", True),
    ]


async def test_bytes_that_two_deleted_versions_named_go_with_the_second(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.publish("d1", tenant=shop.other)
    await shop.act(life_cycle.delete_adapter, "drain")
    await shop.finish_all()
    assert shop.stored == {"d1"}
    async with shop.database.session() as session:
        name = AdapterName(shop.other, "support")
        await life_cycle.delete_adapter(session, ME, name, "force")
    assert await shop.finish_all() == ["other/support@1"]
    assert shop.stored == set()


async def test_deleting_an_adapter_deletes_its_versions_and_aliases(shop: Shop) -> None:
    for digest in ("d1", "d2"):
        await shop.publish(digest)
    await shop.point("prod", 1)
    await shop.act(life_cycle.delete_adapter, "drain")
    await shop.act(life_cycle.delete_adapter, "drain")
    with pytest.raises(ModelNotFound):
        await shop.resolve("acme/support:prod")
    assert await shop.finish_all() == ["acme/support@1", "acme/support@2"]


async def test_numbers_of_deleted_versions_are_not_used_again(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.act(life_cycle.delete_adapter, "drain")
    await shop.finish_all()
    assert (await shop.publish("d2")).version == 2


@pytest.mark.parametrize("is_finished", [True, False])
async def test_the_same_bytes_published_again_are_their_version_again(
    shop: Shop, is_finished: bool
) -> None:
    await shop.publish("d1")
    await shop.act(life_cycle.delete_version, 1, "drain")
    if is_finished:
        await shop.finish_all()
    assert (await shop.publish("d1")).version == 1
    assert await shop.finish_all() == []
    assert (await shop.resolve("acme/support@1")).digest == "d1"
    assert shop.stored == {"d1"}


async def test_what_is_being_deleted_cannot_be_restored(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.act(life_cycle.delete_version, 1, "drain")
    with pytest.raises(VersionNotReady, match="publish the same bytes again"):
        await shop.act(life_cycle.restore, 1)


async def test_bytes_are_there_for_whoever_published_them_while_they_were_deleted(
    shop: Shop,
) -> None:
    """Whatever the order in which the transactions come, the version that is left has its bytes."""
    await shop.publish("d1")
    for _ in range(6):
        await shop.act(life_cycle.delete_adapter, "force")
        await asyncio.gather(
            shop.finish_all(),
            shop.publish("d1", tenant=shop.other),
            shop.publish("d1", name="sales"),
            shop.finish_all(),
        )
        assert shop.stored == {"d1"}
        await shop.publish("d1")


async def test_retirement_and_a_flip_at_once_leave_an_alias_that_can_be_called(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.publish("d2")
    await shop.point("prod", 1)
    for number in (2, 1, 2, 1):
        done = await asyncio.gather(
            shop.point("prod", number),
            shop.act(life_cycle.retire, number),
            return_exceptions=True,
        )
        assert sum(isinstance(result, VersionInUse | VersionNotReady) for result in done) == 1
        assert await shop.resolve("acme/support:prod")
        for each in (1, 2):
            await shop.act(life_cycle.restore, each)


async def test_an_adapter_that_exceeds_the_tenants_storage_is_refused_with_limit_and_use(
    shop: Shop,
) -> None:
    await shop.limit(adapter_storage_bytes=2500)
    await shop.publish("d1")
    await shop.publish("d2")
    with pytest.raises(StorageLimitReached, match=r"1024 bytes.* take 2048 of the 2500"):
        await shop.publish("d3")
    await shop.publish("d1", name="copy")
    await shop.publish("d3", tenant=shop.other)
    await shop.act(life_cycle.delete_version, 1, "drain")
    with pytest.raises(StorageLimitReached):
        await shop.publish("d3")


async def test_deleted_versions_take_no_storage(shop: Shop) -> None:
    await shop.limit(adapter_storage_bytes=1024)
    await shop.publish("d1")
    await shop.act(life_cycle.delete_version, 1, "drain")
    await shop.finish_all()
    assert (await shop.publish("d2")).version == 2


async def test_of_uploads_at_once_only_those_are_taken_that_fit_together(shop: Shop) -> None:
    await shop.limit(adapter_storage_bytes=3000)
    asked = [shop.publish(f"d{i}", name=f"n{i}") for i in range(6)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(result, StorageLimitReached) for result in results) == 4
    async with shop.database.reader() as session:
        stored = await registry.list_versions(session, shop.acme)
    assert sum(version.num_bytes for version in stored) == 2048


@pytest.mark.parametrize("limit", ["adapter_max_rank", "adapter_max_modules"])
async def test_an_adapter_beyond_the_tenants_rank_or_modules_is_refused(
    shop: Shop, limit: str
) -> None:
    await shop.limit(**{limit: 7})
    with pytest.raises(AdapterTooLarge, match=f"8.* 7 .{limit}"):
        await shop.publish_as(Publication("support", "d1", 8, 10, "tiny-base", num_modules=8))
    await shop.publish_as(Publication("support", "d1", 7, 10, "tiny-base", num_modules=7))


async def test_what_killed_gateways_said_is_forgotten(shop: Shop) -> None:
    await shop.say("killed", at=LONG_AGO)
    await shop.say("runs")
    async with shop.database.session() as session:
        await gateways.forget_killed(session, NOW + SOON)
        left = await session.scalars(gateways.select(gateways.Gateway.id))
        assert list(left) == ["runs"]
