"""The registry: names of one tenant, resolved to immutable digests."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.adapters.shop import BASE, NOW, Shop

from loraplex.adapters.registry import names, registry, resolution
from loraplex.adapters.registry.errors import ModelNotFound, VersionConflict
from loraplex.adapters.registry.registry import PublishedVersion
from loraplex.adapters.registry.resolution import ResolvedModel
from loraplex.tenants.errors import NameInvalid


async def test_versions_of_a_name_count_from_one(shop: Shop) -> None:
    assert (await shop.publish("d1")).version == 1
    assert (await shop.publish("d2")).version == 2
    assert (await shop.publish("d3", name="sales")).version == 1


async def test_what_was_published_can_be_read_back(shop: Shop) -> None:
    published = await shop.publish("d1")
    assert published == PublishedVersion("acme/support", 1, "d1", 8, 1024, BASE, NOW)
    async with shop.database.reader() as session:
        assert await registry.list_versions(session, shop.acme) == [published]


async def test_the_same_bytes_again_are_the_same_version(shop: Shop) -> None:
    first = await shop.publish("d1")
    await shop.publish("d2")
    assert await shop.publish("d1") == first
    assert (await shop.resolve("acme/support")).digest == "d2"


async def test_the_same_bytes_for_another_base_model_are_refused(shop: Shop) -> None:
    await shop.publish("d1")
    with pytest.raises(VersionConflict, match="another name"):
        await shop.publish("d1", base="other-base")


async def test_publishers_of_one_name_at_once_get_consecutive_versions(shop: Shop) -> None:
    versions = await asyncio.gather(*(shop.publish(f"d{i}") for i in range(8)))
    assert sorted(version.version for version in versions) == list(range(1, 9))


async def test_tenants_publish_the_same_bytes_and_names_apart(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.publish("d0", tenant=shop.other)
    assert (await shop.publish("d1", tenant=shop.other)).version == 2


@pytest.mark.parametrize("name", ["", "A", "a/b", "a@1", "-a", "a" * 41, "a\n"])
async def test_an_adapters_name_is_a_slug(shop: Shop, name: str) -> None:
    with pytest.raises(NameInvalid):
        await shop.publish("d1", name=name)


async def test_a_name_without_a_version_means_the_newest(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.publish("d2")
    assert await shop.resolve("acme/support") == ResolvedModel("acme/support@2", "d2", 2)


async def test_a_version_can_be_named(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.publish("d2")
    assert await shop.resolve("acme/support@1") == ResolvedModel("acme/support@1", "d1", 1)


async def test_the_base_models_name_means_no_adapter(shop: Shop) -> None:
    assert await shop.resolve(BASE) == ResolvedModel(BASE, digest=None, version=None)


async def test_an_adapter_is_served_on_the_base_it_was_checked_against_alone(shop: Shop) -> None:
    await shop.publish("d1")
    await shop.publish("d2", base="other-base")
    assert (await shop.resolve("acme/support")).digest == "d1"
    assert (await shop.resolve("acme/support", base="other-base")).digest == "d2"
    with pytest.raises(ModelNotFound):
        await shop.resolve("acme/support@2")


async def test_absent_malformed_and_other_tenants_models_are_told_alike(shop: Shop) -> None:
    await shop.publish("d1", tenant=shop.other)
    told = set()
    for model in ("other/support", "other/support@1", "acme/support", "acme/x@9", "nonsense", ""):
        with pytest.raises(ModelNotFound) as refused:
            await shop.resolve(model)
        told.add(str(refused.value).replace(repr(model), "MODEL"))
    assert told == {"The model MODEL does not exist or you have no access to it."}


@pytest.mark.parametrize(
    "model",
    [
        "acme/support@0",
        "acme/support@01",
        "acme/support@-1",
        "acme/support@1 ",
        "acme/support@",
        "acme/support@99999999999999999999",
        "acme/support@१",
        "acme/support/x",
        "acme/support:",
        "acme/support:Prod",
        "acme/support:prod@1",
        "acme/support@1:prod",
        ":prod",
        "ACME/support",
        "acme/support%",
        "acme/suppor_",
        "acme/support' OR '1'='1",
        "acme/support\x00",
        "x" * 10_000,
    ],
)
async def test_names_that_only_look_like_one_are_not_found(shop: Shop, model: str) -> None:
    await shop.publish("d1")
    with pytest.raises(ModelNotFound) as refused:
        await shop.resolve(model)
    assert len(str(refused.value)) < 1000


@given(st.text(max_size=60))
def test_no_text_but_a_model_name_reaches_the_database(text: str) -> None:
    name = names.parse(text)
    assert name is None or set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789-/@:")


async def test_a_list_shows_what_each_name_of_the_tenant_means(shop: Shop) -> None:
    await shop.publish("d1")
    newest = await shop.publish("d2")
    sales = await shop.publish("d3", name="sales")
    await shop.publish("d4", name="elsewhere", base="other-base")
    await shop.publish("d5", tenant=shop.other)
    async with shop.database.reader() as session:
        assert await resolution.list_models(session, shop.acme, BASE) == [sales, newest]
