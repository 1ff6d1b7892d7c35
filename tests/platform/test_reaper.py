"""What gateways that died have left is settled once, by another, from the worker's journal."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from tests.platform.conftest import NOW, make_tenant
from tests.platform.scripted_engine import DIGEST, ScriptedEngine
from tests.tenants.open_intents import budget_limit, make_intent, nothing_new, usage_of

from loraplex.engine.journal_protocol import JournalEntry
from loraplex.engine.usage import Usage
from loraplex.platform.admission import Admission
from loraplex.platform.ledger_writer import LedgerWriter
from loraplex.platform.metrics import GatewayMetrics
from loraplex.platform.reaper import Reaper
from loraplex.platform.services import Resources
from loraplex.tenants import intents
from loraplex.tenants.budgets import Budget, use_of, with_epoch
from loraplex.tenants.errors import UsageConflict
from loraplex.tenants.intents import Intent, Opening
from loraplex.tenants.leases import Lease
from loraplex.tenants.ledger import UsageRecord, list_usage
from loraplex.tenants.quotas_memory import MemoryQuotas
from loraplex.tenants.reservations import Amounts, Reservation

LEASE_S = 60.0
LEASE = Lease("gtw_b", LEASE_S)
USED = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=7)


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


class Scene:
    """Intents of a gateway that is gone, and gateways that look after them."""

    def __init__(self, resources: Resources, template: Intent) -> None:
        self.database = resources.database
        self.engine = cast(ScriptedEngine, resources.engine)
        self.template = template
        self.quotas = MemoryQuotas(lambda: 0)
        self.now = NOW
        self.metrics = GatewayMetrics(CollectorRegistry())
        self.reapers = {name: self.reaper(name) for name in ("gtw_b", "gtw_c")}

    def reaper(self, gateway_id: str) -> Reaper:
        return Reaper(
            Lease(gateway_id, LEASE_S),
            self.database,
            self.engine,
            self.quotas,
            self.metrics,
            lambda: self.now,
        )

    async def open(self, *request_ids: str, delivered: int = 0) -> None:
        template = replace(self.template, delivered_tokens=delivered)
        async with self.database.session() as session:
            opened = [Opening(replace(template, request_id=each)) for each in request_ids]
            assert set(await intents.open_all(session, opened)) == {None}

    def journal(self, request_id: str, state: str = "ended", usage: Usage = USED) -> None:
        self.engine.journaled.entries[request_id] = JournalEntry(
            request_id=request_id,
            state=state,  # type: ignore[arg-type]  # one of them
            usage=usage,
            reason="" if state == "open" else "abort",
            output_digest=DIGEST if state == "ended" else b"",
            accepted_at_s=NOW.timestamp(),
            began_at_s=NOW.timestamp(),
            ended_at_s=None if state == "open" else NOW.timestamp() + 1,
        )

    async def sweep_after(self, passed: timedelta, *gateway_ids: str) -> None:
        self.now += passed
        await asyncio.gather(*(self.reapers[each].sweep() for each in gateway_ids or ("gtw_b",)))

    async def reap(self, *gateway_ids: str) -> None:
        """Let the leases end, and the owner's time to object."""
        await self.sweep_after(LEASE.length + timedelta(seconds=1), *gateway_ids)
        await self.sweep_after(LEASE.grace, *gateway_ids)

    async def usage(self) -> list[UsageRecord]:
        async with self.database.reader() as session:
            return await list_usage(session, self.template.tenant_id)

    async def open_ids(self) -> set[str]:
        async with self.database.reader() as session:
            return await intents.find(session, ["req_1", "req_2", "req_3"])


@pytest.fixture
async def scene(resources: Resources) -> Scene:
    tenant, key = await make_tenant(resources, "acme")
    return Scene(resources, make_intent(tenant.id, key.split("_")[1], "", NOW))


@pytest.mark.parametrize("state", ["ended", "died"])
async def test_what_the_journal_knows_is_recorded_and_nobody_pays(scene: Scene, state: str) -> None:
    await scene.open("req_1")
    scene.journal("req_1", state)
    await scene.reap("gtw_b", "gtw_c")
    (row,) = await scene.usage()
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (10, 4, 7)
    assert (row.source, row.finish_reason, row.billable, row.cost_pico) == (
        "journal",
        "error",
        False,
        0,
    )
    assert row.service_tier == "flex"
    assert row.output_digest == (DIGEST.hex() if state == "ended" else None)
    assert row.finished_at == NOW + timedelta(seconds=1)
    assert await scene.open_ids() == set()


@pytest.mark.parametrize(
    ("delivered", "since", "expected"),
    [(0, NOW, []), (5, NOW, [(10, 5)]), (0, NOW + timedelta(seconds=1), [(0, 0)])],
    ids=["never taken", "delivered all the same", "the journal was lost"],
)
async def test_what_the_journal_does_not_know_ran_only_if_something_says_so(
    scene: Scene, delivered: int, since: datetime, expected: list[tuple[int, int]]
) -> None:
    await scene.open("req_1", delivered=delivered)
    scene.engine.journaled.since_s = since.timestamp()
    await scene.reap()
    rows = await scene.usage()
    assert [(row.prompt_tokens, row.completion_tokens) for row in rows] == expected
    assert {row.source for row in rows} <= {"estimated"}
    assert await scene.open_ids() == set()


async def test_nothing_is_settled_while_it_may_still_end_otherwise(scene: Scene) -> None:
    await scene.open("req_1", "req_2", "req_3")
    scene.journal("req_1", "open")
    scene.journal("req_2")
    scene.reapers["gtw_b"].is_open_here = lambda request_id: request_id == "req_2"
    scene.engine.is_connected = False
    await scene.reap()
    assert await scene.open_ids() == {"req_1", "req_2", "req_3"}
    scene.engine.is_connected = True
    await scene.sweep_after(timedelta(0))
    assert await scene.open_ids() == {"req_1", "req_2"}  # it runs, and it is this gateway's own
    scene.journal("req_1")
    await scene.sweep_after(LEASE.grace)
    assert await scene.open_ids() == {"req_2"}


async def test_an_owner_that_was_cut_off_takes_its_requests_back_in_time(scene: Scene) -> None:
    await scene.open("req_1", "req_2")
    scene.journal("req_1")
    scene.journal("req_2")
    await scene.sweep_after(LEASE.length + timedelta(seconds=1))
    async with scene.database.session() as session:
        until = scene.now + LEASE.length
        assert await intents.renew(session, "gtw_a", until, {"req_1": 3}) == set()
    await scene.sweep_after(LEASE.grace)
    assert await scene.open_ids() == {"req_1"}
    assert [row.request_id for row in await scene.usage()] == ["req_2"]


async def test_an_owner_that_was_cut_off_twice_gets_its_time_to_object_twice(scene: Scene) -> None:
    await scene.open("req_1")
    scene.journal("req_1")
    over = LEASE.length + timedelta(seconds=1)
    await scene.sweep_after(over)
    async with scene.database.session() as session:
        await intents.renew(session, "gtw_a", scene.now, {"req_1": 3})
    # Before this gateway looked whether its owner came back, its lease is over again.
    await scene.sweep_after(LEASE.grace)
    assert await scene.open_ids() == {"req_1"}
    await scene.sweep_after(LEASE.grace)
    assert await scene.open_ids() == set()


async def test_of_an_owner_that_comes_back_too_late_the_ledger_keeps_the_first(
    scene: Scene,
) -> None:
    await scene.open("req_1")
    scene.journal("req_1")
    await scene.reap()
    late = usage_of(replace(scene.template, request_id="req_1"), 9)
    with pytest.raises(UsageConflict):
        await LedgerWriter(scene.database).append(late)
    assert [row.completion_tokens for row in await scene.usage()] == [7]


async def test_budgets_get_back_what_was_reserved_for_it(scene: Scene) -> None:
    limit = budget_limit("tenant", scene.template.tenant_id, NOW)
    intent = replace(scene.template, request_id="req_1")
    asked = Reservation("req_1", intent.tenant_id, (limit,), Amounts(10, 20, 30))
    await Admission(scene.quotas, scene.database).admit(asked, intent, nothing_new)
    budget = Budget.of(intent.tenant_id, limit)
    (known,) = await scene.quotas.standings(intent.tenant_id, [with_epoch(limit, 1)])
    assert known.used == 30
    scene.journal("req_1")
    await scene.reap()
    (known,) = await scene.quotas.standings(intent.tenant_id, [with_epoch(limit, 1)])
    async with scene.database.reader() as session:
        assert known.used == (await use_of(session, budget)).total == 0
    assert b"loraplex_reaped_intents_total 1.0" in scene.metrics.text()
