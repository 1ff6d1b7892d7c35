"""Requests on activated adapters: what the engine is asked for, and whom they are billed to."""

from sqlalchemy import update
from tests.platform.conftest import Gateway

from loraplex.adapters.profile import Profile
from loraplex.adapters.registry.tables import AdapterVersion
from loraplex.engine.protocol import Submit

DIGEST = "d" * 64


async def publish(gateway: Gateway, invocation: tuple[int, ...]) -> None:
    await gateway.publish("judge", DIGEST)
    profile = Profile(invocation_tokens=invocation).encoded()
    async with gateway.resources.database.session() as session:
        await session.execute(update(AdapterVersion).values(profile=profile))


async def submitted(gateway: Gateway, prompt: list[int]) -> Submit:
    model = f"{gateway.tenant.name}/judge"
    response = await gateway.complete(model=model, prompt=prompt)
    assert response.json()["model"] == model
    return await gateway.engine.submitted()


async def test_an_adapter_acts_from_its_last_invocation_in_the_prompt_on(gateway: Gateway) -> None:
    await publish(gateway, (7, 8))
    submit = await submitted(gateway, [7, 8, 5, 7, 8, 6])
    assert (submit.adapter, submit.adapter_start) == (DIGEST, 3)


async def test_without_its_invocation_the_base_computes_what_the_adapter_is_billed_for(
    gateway: Gateway,
) -> None:
    await publish(gateway, (7, 8))
    submit = await submitted(gateway, [8, 7, 5])
    assert (submit.adapter, submit.adapter_start) == (None, 0)
    await gateway.assert_all_settled()
    (record,) = await gateway.usage()
    assert record.adapter_digest == DIGEST


async def test_an_adapter_without_invocation_acts_from_the_first_token_on(gateway: Gateway) -> None:
    await publish(gateway, ())
    submit = await submitted(gateway, [8, 7, 5])
    assert (submit.adapter, submit.adapter_start) == (DIGEST, 0)
