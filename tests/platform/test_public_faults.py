"""Faults that others had in public, and that no other test shows us to be without; all of them are
in `docs/public-faults.md`."""

import asyncio
import secrets
from typing import get_args

import pytest
from sqlalchemy import func, select, text
from starlette.middleware.base import BaseHTTPMiddleware
from tests.platform.conftest import NOW, PEPPER, Gateway
from tests.platform.route_table import route_table
from tests.tenants.open_intents import make_intent, usage_of

from loraplex.platform.intent_writer import IntentWriter
from loraplex.platform.ledger_writer import LedgerWriter
from loraplex.tenants import api_keys, directory
from loraplex.tenants.db import Database
from loraplex.tenants.intents import Opening
from loraplex.tenants.quota_tables import IntentRow
from loraplex.tenants.scoped_limits import KINDS, Dimension
from loraplex.tenants.tables import UsageRow

NUM_REQUESTS = 600
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
METERED = {"/v1/chat/completions", "/v1/completions"}
"""Routes that compute something; each is asked to leave a line in the ledger."""
HINTS = {"/v1/adapters/{name}/warm"}
"""Routes that need what a request needs, since they say that one will come, and compute nothing."""


def test_every_route_that_computes_is_one_of_those_that_are_metered(gateway: Gateway) -> None:
    computing = {
        route.path
        for route in route_table(gateway.app)
        if "inference" in {each.permission for each in route.declared}
    }
    assert computing == METERED | HINTS


async def test_every_metered_route_leaves_a_line_in_the_ledger(gateway: Gateway) -> None:
    for number, path in enumerate(sorted(METERED), 1):
        body = {"model": "tiny", "max_tokens": 8}
        chat = {"messages": [{"role": "user", "content": "hello"}]}
        asked = body | (chat if "chat" in path else {"prompt": "hello"})
        assert (await gateway.client.post(path, json=asked)).status_code == 200
        assert len(await gateway.usage()) == number


def test_no_middleware_stands_between_a_request_and_its_clients_disconnect(
    gateway: Gateway,
) -> None:
    kinds = [each.cls for each in gateway.app.user_middleware]
    assert kinds
    assert not [kind for kind in kinds if issubclass(kind, BaseHTTPMiddleware)]  # type: ignore[arg-type]  # wrong on purpose, or replaced for the test


@pytest.mark.parametrize("dimension", [d for d in get_args(Dimension) if KINDS[d] != "budget"])
async def test_each_limit_that_can_be_set_refuses_in_the_gateway(
    gateway: Gateway, dimension: Dimension
) -> None:
    await gateway.put_limit("tenant", dimension, 1)
    choices = 1 if dimension == "requests_per_minute" else 2
    statuses = [(await gateway.chat(n=choices)).status_code for _ in range(2)]
    # Whatever is larger than a whole limit is refused for good.
    assert statuses == ([200, 429] if choices == 1 else [400, 400])
    assert len(await gateway.usage()) == statuses.count(200)


async def test_gateways_that_admit_and_settle_at_once_never_wait_for_each_other_in_a_circle(
    postgres_url: str,
) -> None:
    database = Database.open(postgres_url)
    async with database.session() as session:
        tenant = await directory.create(session, "acme", NOW, secrets.token_bytes)
        key = await api_keys.mint(session, tenant, "", PEPPER, NOW, secrets.token_bytes)
    gateways = [(IntentWriter(database), LedgerWriter(database)) for _ in range(3)]

    async def serve(number: int) -> None:
        intents, ledger = gateways[number % 3]
        intent = make_intent(tenant.id, key.key_id, f"req_{number * 7919 % 1009}", NOW)
        assert await intents.open(Opening(intent)) is None
        await ledger.append(usage_of(intent, 5))

    await asyncio.gather(*(serve(number) for number in range(NUM_REQUESTS)))

    async with database.reader() as session:
        deadlocks = text(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        assert await session.scalar(deadlocks) == 0
        assert await session.scalar(select(func.count()).select_from(UsageRow)) == NUM_REQUESTS
        assert await session.scalar(select(func.count()).select_from(IntentRow)) == 0
    await database.close()
