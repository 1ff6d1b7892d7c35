"""Budgets of money hold only where there is a price, and prices are of one currency then."""

import secrets
from datetime import timedelta

import pytest
from tests.platform.conftest import NOW, Gateway, error_of

from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.prices import TokenPrices, set_price

ACT = Act(CLI, NOW)
TOKENS = TokenPrices(prompt_micros=1, cached_micros=1, completion_micros=1)


async def test_a_budget_of_money_lets_nothing_pass_until_a_price_holds(gateway: Gateway) -> None:
    await gateway.put_limit("tenant", "cost_micros_per_month", 10**6, mode="shadow")
    assert (await gateway.chat()).status_code == 200
    await gateway.put_limit("key", "cost_micros_per_month", 10**6)
    refused = await gateway.chat()
    assert (refused.status_code, error_of(refused)["code"]) == (503, "price_missing")
    assert "loraplex price set" in error_of(refused)["message"]
    async with gateway.resources.database.session() as session:
        await set_price(session, "EUR", TOKENS, NOW + timedelta(days=9), ACT, secrets.token_bytes)
    assert (await gateway.chat()).status_code == 503
    async with gateway.resources.database.session() as session:
        now = gateway.services.now()
        await set_price(session, "EUR", TOKENS, now, Act(CLI, now), secrets.token_bytes)
    assert (await gateway.chat()).status_code == 200
    with pytest.raises(ValueRefused, match="prices so far are in EUR"):
        async with gateway.resources.database.session() as session:
            await set_price(session, "USD", TOKENS, now, Act(CLI, now), secrets.token_bytes)
