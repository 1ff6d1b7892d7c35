"""What requests are admitted by: on every gateway as it is when they come, at the cost of a row."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import event, update
from tests.platform.conftest import NOW, PEPPER, make_tenant
from tests.platform.scripted_engine import ScriptedEngine, says
from tests.platform.tiny_model import model_info
from tests.platform.walking import Walk

from loraplex.adapters.registry.registry import Publication, publish
from loraplex.adapters.registry.tables import AdapterVersion
from loraplex.engine.protocol import Submit
from loraplex.platform.completions import Admitted, complete
from loraplex.platform.errors import ModelNotAllowed
from loraplex.platform.services import Resources, build_services
from loraplex.platform.settings import Settings
from loraplex.tenants import prices
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.catalogue_version import PostgresCatalogueVersion
from loraplex.tenants.db import Database
from loraplex.tenants.errors import (
    AddressRefused,
    KeyExpired,
    KeyRefused,
    KeyRevoked,
    KeyUnknown,
    PermissionMissing,
    ProjectArchived,
    TenantSuspended,
)
from loraplex.tenants.key_text import compose
from loraplex.tenants.prices import TokenPrices
from loraplex.tenants.quotas_memory import MemoryQuotas
from loraplex.tenants.tables import ApiKey, Project, Tenant
from loraplex.tenants.together import Together


@dataclass
class Clock:
    """A clock that is set."""

    at: datetime = NOW

    def __call__(self) -> float:
        return self.at.timestamp()


@dataclass
class Gateways:
    """Two gateways on one database, and whoever changes it."""

    first: Walk
    second: Walk
    clock: Clock

    @property
    def both(self) -> tuple[Walk, Walk]:
        return self.first, self.second

    async def change(self, table: type[Any], **values: object) -> None:
        """Change all rows of a table, past both gateways."""
        async with self.first.resources.database.session() as session:
            await session.execute(update(table).values(**values))

    async def admitted(self, **fields: object) -> list[Submit]:
        """What each gateway sends to its engine for a request."""
        submits = []
        for walk in self.both:
            first, *_ = await walk.run(**fields)
            assert isinstance(first, Admitted)
            submits.append(first.submit)
        return submits


@pytest.fixture
async def gateways(settings: Settings, database_url: str) -> AsyncIterator[Gateways]:
    clock = Clock()
    databases = [Database.open(database_url) for _ in range(2)]
    walks: list[Walk] = []
    for database in databases:
        engine = ScriptedEngine(model_info())
        engine.answer = says("Hel", "lo", "!")
        resources = Resources(
            settings=settings,
            database=database,
            quotas=MemoryQuotas(time.monotonic_ns),
            engine=engine,
            pepper=PEPPER,
            clock=clock,
            entropy=secrets.token_bytes,
            registry=CollectorRegistry(),
        )
        walks.append(Walk(resources, build_services(resources), "", ""))
    tenant, key = await make_tenant(walks[0].resources, "acme")
    for number, walk in enumerate(walks):
        # One ledger has the requests of both.
        walk.tenant_id, walk.key, walk.ids = tenant.id, key, [""] * 100 * number
    yield Gateways(*walks, clock)
    for database in databases:
        await database.close()


async def test_a_change_holds_at_the_next_request_of_every_gateway(gateways: Gateways) -> None:
    (before, _) = await gateways.admitted()
    assert (before.weight, before.weight_version, before.service_tier) == (1.0, 1, "default")
    await gateways.change(Tenant, weight=3.0, version=2, service_tiers="flex")
    for submit in await gateways.admitted():
        assert (submit.weight, submit.weight_version, submit.service_tier) == (3.0, 2, "flex")
    database, tenant_id = gateways.first.resources.database, gateways.first.tenant_id
    async with database.session() as session:
        for digest in ("one", "two"):
            publication = Publication("support", f"sha256:{digest}", 8, 1000, "tiny")
            await publish(session, tenant_id, publication, NOW)
    assert [s.adapter for s in await gateways.admitted(model="acme/support")] == ["sha256:two"] * 2
    retired = update(AdapterVersion).where(AdapterVersion.number == 2).values(status="retired")
    async with database.session() as session:
        await session.execute(retired)
    assert [s.adapter for s in await gateways.admitted(model="acme/support")] == ["sha256:one"] * 2


@pytest.mark.parametrize(
    ("table", "values", "error"),
    [
        (Tenant, {"status": "suspended"}, TenantSuspended),
        (Project, {"status": "archived"}, ProjectArchived),
        (ApiKey, {"revoked_at": NOW}, KeyRevoked),
    ],
)
async def test_whoever_loses_the_right_to_call_is_refused_and_broken_off_on_every_gateway(
    gateways: Gateways, table: type[Any], values: dict[str, object], error: type[KeyRefused]
) -> None:
    streams = []
    for walk in gateways.both:
        walk.engine.answer = None
        stream = complete(walk.call(max_tokens=5), walk.services)
        await anext(stream)
        request_id = walk.ids[-1]
        streams.append(stream)
        pending = asyncio.ensure_future(anext(stream))
        await walk.engine.submitted()
        walk.engine.emit(request_id, "Hel")
        await pending
    await gateways.change(table, **values)
    for walk, stream in zip(gateways.both, streams, strict=True):
        walk.engine.answer = says("Hel", "lo", "!")
        with pytest.raises(error):
            await walk.run()
        await walk.services.standing_watch.look()
        with pytest.raises(error):
            await anext(stream)
        await walk.assert_settled()
    rows = await gateways.first.usage()
    assert [(row.finish_reason, row.completion_tokens) for row in rows] == [("abort", 1)] * 2


async def test_requests_that_came_while_nothing_was_looked_at_are_broken_off_too(
    gateways: Gateways,
) -> None:
    walk = gateways.first
    walk.engine.answer = None
    await walk.services.standing_watch.look()
    stream = complete(walk.call(), walk.services)
    await anext(stream)
    await gateways.change(Tenant, status="deleting")
    await walk.services.standing_watch.look()
    with pytest.raises(TenantSuspended):
        await anext(stream)
    await walk.assert_settled()


async def test_a_key_is_held_to_its_scopes_by_what_a_name_means(gateways: Gateways) -> None:
    walk = gateways.first
    async with walk.resources.database.session() as session:
        publication = Publication("support", "sha256:one", 8, 1000, "tiny")
        await publish(session, walk.tenant_id, publication, NOW)
    await gateways.change(ApiKey, models='["acme/support@1"]')
    await walk.run(model="acme/support")
    with pytest.raises(ModelNotAllowed):
        await walk.run(model="tiny")
    await gateways.change(Project, models="[]")
    with pytest.raises(ModelNotAllowed):
        await walk.run(model="acme/support")
    await gateways.change(ApiKey, addresses='["10.0.0.0/8"]')
    with pytest.raises(AddressRefused):
        await walk.run()
    await gateways.change(ApiKey, addresses='["127.0.0.0/8"]', permissions='["models.read"]')
    with pytest.raises(PermissionMissing):
        await walk.run()


@pytest.mark.parametrize(
    ("asked", "allowed", "served"),
    [
        ("priority", "priority,default,flex", "priority"),
        ("priority", "default,flex", "default"),
        ("priority", "flex", "flex"),
        ("auto", "default", "default"),
        ("auto", "priority", "priority"),
        ("flex", "priority,default", "default"),
    ],
)
async def test_a_tier_that_the_tenant_may_not_have_is_served_as_the_next_lower_one(
    gateways: Gateways, asked: str, allowed: str, served: str
) -> None:
    await gateways.change(Tenant, service_tiers=allowed)
    submits = await gateways.admitted(service_tier=asked)
    assert [submit.service_tier for submit in submits] == [served] * 2
    assert {row.service_tier for row in await gateways.first.usage()} == {served}


async def test_what_depends_on_the_clock_is_not_kept(gateways: Gateways) -> None:
    walk, later = gateways.first, NOW + timedelta(hours=1)
    tokens = TokenPrices(prompt_micros=10**6, cached_micros=0, completion_micros=0)
    async with walk.resources.database.session() as session:
        await prices.set_price(session, "EUR", tokens, later, Act(CLI, NOW), secrets.token_bytes)
    await gateways.change(ApiKey, expires_at=later + timedelta(hours=1))
    await walk.run()
    gateways.clock.at = later
    await walk.run()
    assert [row.cost_pico > 0 for row in await walk.usage()] == [True, False]  # newest first
    gateways.clock.at = later + timedelta(hours=1)
    with pytest.raises(KeyExpired):
        await walk.run()


async def test_the_secret_before_a_rotation_opens_as_long_as_its_grace(gateways: Gateways) -> None:
    until = NOW + timedelta(hours=1)
    async with gateways.first.resources.database.session() as session:
        old = ApiKey.__table__.c.key_hash
        await session.execute(
            update(ApiKey).values(previous_hash=old, key_hash="0" * 64, previous_until=until)
        )
    await gateways.admitted()
    gateways.clock.at = until
    with pytest.raises(KeyRevoked):
        await gateways.first.run()


async def test_known_requests_are_admitted_with_queries_of_intents_alone_whatever_others_make_up(
    gateways: Gateways,
) -> None:
    walk = gateways.first
    await walk.run()
    edition = await walk.services.catalogue.current()
    _, key_id, secret = walk.key.split("_")
    wrong = [compose("lpx", secrets.token_bytes(12), secrets.token_bytes(32)).text for _ in "123"]
    wrong.append(_with_id(key_id))
    statements: list[str] = []
    engine = walk.resources.database._engine.sync_engine
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    refused = [walk.run_as(text) for text in wrong]
    for outcome in await asyncio.gather(*refused, return_exceptions=True):
        assert isinstance(outcome, KeyUnknown)
    assert len(statements) <= 4  # two queries and their begins, for three keys at once
    statements.clear()
    admitted = complete(walk.call(), walk.services)
    await anext(admitted)
    *_begin, tenant, limits, intent = statements
    assert len(statements) <= 4
    assert "FROM tenant" in tenant
    assert "FROM limit_policy" in limits  # for all intents that are written together
    assert intent.startswith("INSERT INTO usage_intent")
    await admitted.aclose()
    assert await walk.services.catalogue.current() is edition
    assert secret not in repr([edition._keys._entries, edition._unknown_keys._entries])


async def test_whoever_asks_while_an_answer_is_under_way_gets_the_next() -> None:
    asked: list[list[str]] = []
    under_way, go_on = asyncio.Event(), asyncio.Event()

    async def answer(keys: Any) -> dict[str, int]:
        asked.append(sorted(keys))
        under_way.set()
        await go_on.wait()
        return {key: len(asked) for key in keys}

    together: Together[str, int] = Together(answer)
    first = asyncio.ensure_future(together.get("a"))
    await under_way.wait()
    later = [asyncio.ensure_future(together.get(key)) for key in "aba"]
    go_on.set()
    assert [await first, *[await each for each in later]] == [1, 2, 2, 2]
    assert asked == [["a"], ["a", "b"]]


async def test_a_connection_that_the_server_closed_is_replaced(postgres_url: str) -> None:
    database = Database.open(postgres_url)
    version = database._catalogue
    assert isinstance(version, PostgresCatalogueVersion)
    before = await version.read()
    assert version._connection is not None
    backend = version._connection.info.backend_pid
    dsn = postgres_url.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [backend])
    assert await version.read() == before
    await database.close()


def _with_id(key_id: str) -> str:
    """A well-formed key of this id and another secret."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    number = 0
    for digit in key_id:
        number = number * 62 + digits.index(digit)
    return compose("lpx", number.to_bytes(12), secrets.token_bytes(32)).text
