"""What people call an adapter that the worker knows by digest."""

from tests.adapters.shop import ME, Shop

from loraplex.adapters.registry import life_cycle, pins
from loraplex.adapters.registry.model_names import names_of_adapters
from loraplex.adapters.registry.names import AdapterName
from loraplex.adapters.spec import AdapterKey


async def name_of(shop: Shop, digest: str) -> str | None:
    async with shop.database.reader() as session:
        key = AdapterKey(shop.acme, digest)
        return (await names_of_adapters(session, [key])).get(key)


async def test_of_versions_with_the_same_bytes_one_that_can_be_called_gives_the_name(
    shop: Shop,
) -> None:
    await shop.publish("d1")
    for name in ("sales", "old"):
        await shop.publish("d1", name)
    assert await name_of(shop, "d1") == "acme/old@1", "the newest"
    old = AdapterName(shop.acme, "old")
    async with shop.database.session() as session:
        await life_cycle.delete_version(session, ME, old, 1, "drain")
    assert await name_of(shop, "d1") == "acme/sales@1", "it is being deleted"
    await shop.limit(adapter_pin_bytes=5000)
    await shop.act(pins.pin, 1)
    assert await name_of(shop, "d1") == "acme/support@1", "it is pinned"
    assert await name_of(shop, "d2") is None
