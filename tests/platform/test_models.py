"""The list of models is exactly what a key can call."""

import pytest
from tests.platform.conftest import NOW, Gateway, error_of


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


async def test_the_list_is_the_base_model_and_the_tenants_own_adapters(gateway: Gateway) -> None:
    other, _ = await gateway.make_tenant("other")
    await gateway.publish("theirs", "d0", other)
    await gateway.publish("sql", "d1")
    await gateway.publish("support", "d2")
    await gateway.publish("support", "d3")
    body = (await gateway.client.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["tiny", "acme/sql", "acme/support"]
    assert body["data"][2] == {
        "id": "acme/support",
        "object": "model",
        "created": int(NOW.timestamp()),
        "owned_by": "acme",
        "parent": "tiny",
        "root": "acme/support@2",
        "max_model_len": 256,
    }
    for card in body["data"]:
        assert (await gateway.chat(model=card["id"])).status_code == 200


async def test_a_model_is_found_by_each_of_its_names(gateway: Gateway) -> None:
    await gateway.publish("support", "d1")
    await gateway.publish("support", "d2")
    for name, root in [
        ("tiny", "tiny"),
        ("acme/support", "acme/support@2"),
        ("acme/support@1", "acme/support@1"),
    ]:
        card = (await gateway.client.get(f"/v1/models/{name}")).json()
        assert (card["id"], card["root"]) == (name, root)


async def test_a_foreign_model_is_told_exactly_as_an_absent_one(gateway: Gateway) -> None:
    other, _ = await gateway.make_tenant("other")
    await gateway.publish("support", "d1", other)
    foreign = await gateway.client.get("/v1/models/other/support")
    absent = await gateway.client.get("/v1/models/other/nothing")
    assert foreign.status_code == absent.status_code == 404
    assert error_of(foreign)["code"] == "model_not_found"
    assert foreign.text.replace("support", "nothing") == absent.text


async def test_models_need_a_key_and_a_worker_that_was_seen(gateway: Gateway) -> None:
    unauthorized = await gateway.client.get("/v1/models", headers={"authorization": ""})
    assert unauthorized.status_code == 401
    gateway.engine.model_info = None
    assert (await gateway.client.get("/v1/models")).status_code == 503
    assert (await gateway.client.get("/v1/models/tiny")).status_code == 503
