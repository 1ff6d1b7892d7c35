"""Bytes of adapters: whoever puts and removes the same ones, published versions have theirs."""

import pytest
from tests.adapters.shop import LONG_AGO, ME, NOW, Shop

from loraplex.adapters.registry import byte_claims, life_cycle, registry
from loraplex.adapters.registry.byte_claims import KEEP_LEASE, REMOVE_LEASE, Claim
from loraplex.adapters.registry.errors import BytesLeaving
from loraplex.adapters.registry.life_cycle import Finished
from loraplex.adapters.registry.registry import Publication


async def begin_removal(shop: Shop, now=NOW) -> Claim | None:
    async with shop.database.session() as session:
        return await byte_claims.begin_removal(session, "d1", now)


async def deleted(shop: Shop) -> Finished:
    """The version of `d1`, deleted up to its bytes."""
    await shop.publish("d1")
    await shop.act(life_cycle.delete_version, 1, "drain")
    async with shop.database.session() as session:
        (deletion,) = await life_cycle.list_deletions(session)
        finished = await life_cycle.finish(session, deletion, NOW)
    assert finished is not None
    return finished


async def test_bytes_that_a_version_names_or_somebody_keeps_are_not_removed(shop: Shop) -> None:
    await shop.publish("d1")
    assert await begin_removal(shop) is None
    await shop.act(life_cycle.delete_version, 1, "drain")
    assert await begin_removal(shop) is None, "requests may still run on it"
    claim = await shop.keep("d1")
    await shop.finish_all()
    assert shop.stored == {"d1"}
    async with shop.database.session() as session:
        await byte_claims.give_up(session, claim)
    removal = await begin_removal(shop)
    assert removal is not None
    assert await begin_removal(shop) is None, "one removes them already"


async def test_bytes_that_are_being_removed_are_not_published(shop: Shop) -> None:
    finished = await deleted(shop)
    with pytest.raises(BytesLeaving):
        async with shop.database.session() as session:
            await byte_claims.begin_keep(session, "d1", NOW)
    assert finished.removal is not None
    await shop.remove(finished.removal)
    assert (await shop.publish("d1")).version == 1
    assert shop.stored == {"d1"}


async def test_a_removal_whose_process_was_killed_is_begun_by_another(shop: Shop) -> None:
    await deleted(shop)
    late = NOW + 2 * REMOVE_LEASE
    async with shop.database.reader() as session:
        assert await byte_claims.unfinished(session, NOW) == []
        assert await byte_claims.unfinished(session, late) == ["d1"]
    removal = await begin_removal(shop, late)
    assert removal is not None
    await shop.remove(removal)
    assert shop.stored == set()
    async with shop.database.reader() as session:
        assert await byte_claims.unfinished(session, late + 2 * REMOVE_LEASE) == []


async def test_a_keep_that_was_taken_for_dead_cannot_publish(shop: Shop) -> None:
    claim = await shop.keep("d1", LONG_AGO - KEEP_LEASE)
    removal = await begin_removal(shop)
    assert removal is not None
    publication = Publication("support", "d1", 8, 1024, "tiny-base")
    with pytest.raises(BytesLeaving):
        async with shop.database.session() as session:
            await registry.publish(session, shop.acme, publication, NOW, ME.actor, claim)


async def test_the_last_of_those_who_keep_the_same_bytes_can_remove_them(shop: Shop) -> None:
    claims = [await shop.keep("d1") for _ in range(2)]
    for claim in claims:
        assert await begin_removal(shop) is None
        async with shop.database.session() as session:
            await byte_claims.give_up(session, claim)
    assert await begin_removal(shop) is not None
