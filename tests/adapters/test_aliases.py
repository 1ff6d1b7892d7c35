"""Aliases: names that move between versions, atomically, and back."""

import asyncio
from typing import Any

import pytest
from tests.adapters.shop import BASE, Shop

from loraplex.adapters.registry import aliases, life_cycle, registry, resolution
from loraplex.adapters.registry.aliases import Canary
from loraplex.adapters.registry.errors import (
    AliasMoved,
    ModelNotFound,
    NothingToMoveTo,
    TooManyAliases,
    VersionNotReady,
)
from loraplex.adapters.registry.names import AdapterName
from loraplex.tenants.errors import NameInvalid, ValueRefused


@pytest.fixture
async def shop(shop: Shop) -> Shop:
    """With three versions of `support`."""
    for digest in ("d1", "d2", "d3"):
        await shop.publish(digest)
    return shop


async def test_an_alias_means_the_version_that_it_points_to(shop: Shop) -> None:
    await shop.point("prod", 2)
    resolved = await shop.resolve("acme/support:prod")
    assert (resolved.name, resolved.digest) == ("acme/support@2", "d2")


async def test_a_flip_is_seen_by_the_next_request_and_remembers_what_was_before(shop: Shop) -> None:
    await shop.point("prod", 1)
    flipped = await shop.point("prod", 3)
    assert (flipped.version, flipped.previous) == (3, 1)
    assert (await shop.resolve("acme/support:prod")).digest == "d3"


async def test_a_flip_to_where_it_is_changes_nothing(shop: Shop) -> None:
    await shop.point("prod", 1)
    await shop.point("prod", 2)
    told = await shop.actions()
    again = await shop.point("prod", 2)
    assert (again.version, again.previous) == (2, 1)
    assert await shop.actions() == told


async def test_a_flip_with_an_expectation_is_refused_where_that_does_not_hold(shop: Shop) -> None:
    await shop.point("prod", 1, expected=0)
    with pytest.raises(AliasMoved, match="means version 1, and was expected at version 2"):
        await shop.point("prod", 3, expected=2)
    with pytest.raises(AliasMoved, match="expected absent"):
        await shop.point("prod", 3, expected=0)
    with pytest.raises(AliasMoved, match="is absent"):
        await shop.point("beta", 3, expected=2)
    assert (await shop.point("prod", 3, expected=1)).version == 3
    assert (await shop.point("prod", 3, expected=1)).version == 3, "sent twice"


async def test_of_flips_at_once_from_one_version_one_succeeds(shop: Shop) -> None:
    await shop.point("prod", 1)
    await shop.publish("d4")
    asked = [shop.point("prod", version, expected=1) for version in (2, 3, 4)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    moved = [result for result in results if not isinstance(result, BaseException)]
    assert len(moved) == 1
    assert sum(isinstance(result, AliasMoved) for result in results) == 2
    async with shop.database.reader() as session:
        assert await aliases.get_alias(session, shop.support, "prod") == moved[0]


async def test_a_rollback_goes_back_once_however_often_it_is_sent(shop: Shop) -> None:
    await shop.point("prod", 1)
    await shop.point("prod", 2)
    back = await shop.act(aliases.roll_back, "prod")
    assert (back.version, back.previous) == (1, None)
    with pytest.raises(NothingToMoveTo):
        await shop.act(aliases.roll_back, "prod")
    assert (await shop.resolve("acme/support:prod")).digest == "d1"


async def test_a_rollback_to_a_retired_version_is_refused(shop: Shop) -> None:
    await shop.point("prod", 1)
    await shop.point("prod", 2)
    await shop.act(life_cycle.retire, 1)
    with pytest.raises(VersionNotReady, match="restore it first"):
        await shop.act(aliases.roll_back, "prod")


async def test_requests_of_an_alias_go_to_its_canary_by_their_sticky_text(shop: Shop) -> None:
    await shop.point("prod", 1)
    await shop.canary("prod", 2, 30)
    asked = [await shop.resolve("acme/support:prod", sticky=f"u{i}") for i in range(60)]
    share = sum(resolved.version == 2 for resolved in asked) / 60
    assert 0.1 < share < 0.5
    again = [await shop.resolve("acme/support:prod", sticky=f"u{i}") for i in range(10)]
    assert again == asked[:10]
    assert (await shop.resolve("acme/support:prod")).version == 1, "who asks without a text"


async def test_a_canary_of_all_requests_takes_all(shop: Shop) -> None:
    await shop.point("prod", 1)
    await shop.canary("prod", 2, 100)
    assert (await shop.resolve("acme/support:prod", sticky="x")).version == 2


async def test_a_canary_of_another_base_model_is_passed_over(shop: Shop) -> None:
    await shop.publish("d4", base="other-base")
    await shop.point("prod", 1)
    await shop.canary("prod", 4, 100)
    assert (await shop.resolve("acme/support:prod", sticky="x")).version == 1
    on_other = await shop.resolve("acme/support:prod", base="other-base", sticky="x")
    assert on_other.version == 4


async def test_a_promoted_canary_is_what_the_alias_means(shop: Shop) -> None:
    await shop.point("prod", 1)
    await shop.canary("prod", 2, 10)
    promoted = await shop.act(aliases.promote, "prod")
    assert (promoted.version, promoted.previous, promoted.canary) == (2, 1, None)
    with pytest.raises(NothingToMoveTo):
        await shop.act(aliases.promote, "prod")


async def test_a_canary_that_is_cleared_takes_no_requests(shop: Shop) -> None:
    await shop.point("prod", 1)
    await shop.canary("prod", 2, 100)
    for _ in range(2):
        assert (await shop.act(aliases.clear_canary, "prod")).canary is None
    assert (await shop.resolve("acme/support:prod", sticky="x")).version == 1


async def test_a_flip_elsewhere_ends_a_canary(shop: Shop) -> None:
    await shop.point("prod", 1)
    await shop.canary("prod", 2, 10)
    assert (await shop.point("prod", 3)).canary is None


@pytest.mark.parametrize("percent", [0, 101, -1])
async def test_a_canary_takes_one_to_a_hundred_per_cent(shop: Shop, percent: int) -> None:
    await shop.point("prod", 1)
    with pytest.raises(ValueRefused, match="percent"):
        await shop.canary("prod", 2, percent)


async def test_a_canary_is_another_version_than_the_aliass_own(shop: Shop) -> None:
    await shop.point("prod", 1)
    with pytest.raises(ValueRefused, match="another version"):
        await shop.canary("prod", 1, 10)


async def test_a_deleted_alias_is_not_found_and_can_be_deleted_again(shop: Shop) -> None:
    await shop.point("prod", 1)
    for _ in range(2):
        await shop.act(aliases.delete_alias, "prod")
    with pytest.raises(ModelNotFound):
        await shop.resolve("acme/support:prod")


async def test_an_alias_points_to_a_version_that_can_be_called(shop: Shop) -> None:
    await shop.act(life_cycle.retire, 2)
    with pytest.raises(VersionNotReady, match="retired"):
        await shop.point("prod", 2)
    with pytest.raises(ModelNotFound):
        await shop.point("prod", 9)
    with pytest.raises(NameInvalid):
        await shop.point("Prod", 1)


async def test_another_tenants_alias_is_told_as_an_absent_one(shop: Shop) -> None:
    await shop.point("prod", 1)
    foreign = AdapterName(shop.other, "support")
    for model in ("acme/support:prod", "acme/support:none", "other/support:prod"):
        with pytest.raises(ModelNotFound):
            await shop.resolve(model, tenant=shop.other)
    async with shop.database.reader() as session:
        with pytest.raises(ModelNotFound):
            await aliases.get_alias(session, foreign, "prod")
        assert await aliases.list_aliases(session, shop.other) == []


async def test_an_adapter_has_a_bounded_number_of_aliases(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aliases, "MAX_ALIASES", 3)
    for i in range(3):
        await shop.point(f"a{i}", 1)
    with pytest.raises(TooManyAliases):
        await shop.point("more", 1)


async def test_models_that_can_be_called_are_names_and_aliases(shop: Shop) -> None:
    await shop.publish("d9", name="elsewhere", base="other-base")
    await shop.point("prod", 1)
    async with shop.database.reader() as session:
        models = await resolution.list_callable(session, shop.acme, BASE)
    assert [(model.name, model.version.version) for model in models] == [
        ("acme/support", 3),
        ("acme/support:prod", 1),
    ]


async def test_each_change_of_an_alias_is_told_with_who_made_it(shop: Shop) -> None:
    await shop.point("prod", 1)
    await shop.point("prod", 2)
    await shop.canary("prod", 3, 10)
    await shop.canary("prod", 3, 20)
    await shop.act(aliases.promote, "prod")
    await shop.act(aliases.roll_back, "prod")
    await shop.act(aliases.delete_alias, "prod")
    events = [event for event in await shop.events() if event.action != "adapter.publish"]
    assert {(event.actor, event.subject) for event in events} == {("key_me", "acme/support:prod")}
    assert [(event.action.removeprefix("adapter.alias."), event.detail) for event in events] == [
        ("point", {"from": None, "to": 1}),
        ("point", {"from": 1, "to": 2}),
        ("canary", {"version": 3, "percent": 10}),
        ("canary", {"version": 3, "percent": 20, "was": {"version": 3, "percent": 10}}),
        ("promote", {"from": 2, "to": 3}),
        ("rollback", {"from": 3, "to": 2}),
        ("delete", {"was": 2}),
    ]


async def test_what_is_not_committed_is_not_told(shop: Shop) -> None:
    async def broken_off(*asked: Any) -> None:
        await aliases.point(*asked)
        raise InterruptedError

    told = await shop.actions()
    with pytest.raises(InterruptedError):
        await shop.act(broken_off, "prod", 1)
    assert await shop.actions() == told


async def test_names_of_an_adapter_are_listed_with_what_they_mean(shop: Shop) -> None:
    await shop.point("prod", 1)
    await shop.point("beta", 2)
    await shop.canary("prod", 3, 5)
    async with shop.database.reader() as session:
        listed = await aliases.list_aliases(session, shop.acme, "support")
        assert await registry.list_all_versions(session, shop.support)
    assert [(alias.model, alias.version, alias.canary) for alias in listed] == [
        ("acme/support:beta", 2, None),
        ("acme/support:prod", 1, Canary(3, 5)),
    ]
