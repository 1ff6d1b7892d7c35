"""Store, journal and ledger are compared: what differs is told, and the store is told anew."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from tests.platform.conftest import NOW, make_tenant
from tests.platform.scripted_engine import ScriptedEngine
from tests.platform.shell import Shell
from tests.tenants.open_intents import budget_limit, make_intent, nothing_new, usage_of

from loraplex.engine.journal_protocol import JournalEntry, JournalHour, JournalSum
from loraplex.engine.usage import Usage
from loraplex.platform.admission import Admission
from loraplex.platform.ledger_writer import LedgerWriter
from loraplex.platform.metrics import GatewayMetrics
from loraplex.platform.reconciliation import Comparer, HourDrift, Reconciliation
from loraplex.platform.services import Resources
from loraplex.tenants import intents, ledger
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.intents import Intent, Opening
from loraplex.tenants.key_scopes import of_platform
from loraplex.tenants.limit_changes import NewLimit, put
from loraplex.tenants.limit_parents import LimitOwner
from loraplex.tenants.limits import Limits
from loraplex.tenants.orphans import used_by
from loraplex.tenants.quotas_memory import MemoryQuotas
from loraplex.tenants.reservations import Amounts, Reservation

HOUR = timedelta(hours=1)
DEFAULTS = Limits(requests_per_minute=1000, tokens_per_minute=1_000_000, concurrency=100)
NOTHING = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)


class Scene:
    """A tenant with a budget and one request in it."""

    def __init__(self, resources: Resources, template: Intent) -> None:
        self.database = resources.database
        self.engine = cast(ScriptedEngine, resources.engine)
        self.template = template
        self.quotas = MemoryQuotas(lambda: 0)
        self.admission = Admission(self.quotas, self.database)
        self.metrics = GatewayMetrics(CollectorRegistry())
        self.limit = budget_limit("tenant", template.tenant_id, NOW, 1000)
        comparer = Comparer(self.database, self.quotas, self.engine, lambda: NOW)
        self.reconciliation = Reconciliation(comparer, self.admission, self.metrics)

    def journal(self, intent: Intent, usage: Usage, state: str = "ended") -> None:
        at = intent.accepted_at.timestamp()
        self.engine.journaled.entries[intent.request_id] = JournalEntry(
            request_id=intent.request_id,
            state=state,  # type: ignore[arg-type]  # one of them
            usage=usage,
            reason="stop",
            output_digest=b"",
            accepted_at_s=at,
            began_at_s=at,
            ended_at_s=at,
        )


async def make_scene(resources: Resources) -> Scene:
    tenant, key = await make_tenant(resources, "acme")
    async with resources.database.session() as session:
        cli = of_platform(Act(CLI, NOW))
        owner = LimitOwner(tenant.id, "tenant", tenant.id)
        await put(session, cli, owner, "tokens_per_month", NewLimit(1000), DEFAULTS)
    return Scene(resources, make_intent(tenant.id, key.split("_")[1], "req_1", NOW))


@pytest.fixture
async def scene(resources: Resources) -> Scene:
    return await make_scene(resources)


async def test_a_store_that_missed_something_is_told_anew(scene: Scene) -> None:
    intent = scene.template
    asked = Reservation("req_1", intent.tenant_id, (scene.limit,), Amounts(10, 20, 30))
    hold = await scene.admission.admit(asked, intent, nothing_new)
    same = await scene.reconciliation.reconcile()
    assert (same.num_budgets, same.budgets, same.open_intents, same.open_tokens) == (1, (), 1, 30)
    assert same.store_tokens == 30
    await LedgerWriter(scene.database).append(usage_of(intent, 5))
    (drift,) = (await scene.reconciliation.reconcile()).budgets
    assert (drift.database, drift.store) == (15, 30)
    assert b"loraplex_ledger_drift_budgets 1.0" in scene.metrics.text()
    await scene.quotas.settle(hold, used_by(usage_of(intent, 5)))
    assert (await scene.reconciliation.reconcile()).budgets == ()
    assert b"loraplex_ledger_drift_budgets 0.0" in scene.metrics.text()


async def test_the_ledger_has_what_the_journal_has_or_it_is_told(scene: Scene) -> None:
    start = NOW - 3 * HOUR
    ran = Usage(prompt_tokens=10, cached_tokens=0, completion_tokens=5)
    paid, broken, lost, *others = (
        replace(scene.template, request_id=f"req_{name}", accepted_at=start)
        for name in ("paid", "broken", "lost", *(f"other_{number}" for number in range(1000)))
    )
    for intent in (paid, broken, lost):
        scene.journal(intent, ran)
    record = usage_of(broken, 2)
    delivered_less = replace(record, billable=False, finish_reason="error")
    async with scene.database.session() as session:
        records = [usage_of(paid, 5), delivered_less, *(usage_of(other, 9) for other in others)]
        await ledger.append_all(session, records)
    hour = JournalHour(
        start_s=int(start.timestamp()),
        ended=JournalSum(
            num_requests=2,
            usage=Usage(prompt_tokens=20, cached_tokens=0, completion_tokens=10),
        ),
        died=JournalSum(num_requests=0, usage=NOTHING),
    )
    scene.engine.journaled.hours = [hour]
    assert (await scene.reconciliation.reconcile()).hours == ()
    third = JournalSum(
        num_requests=3, usage=Usage(prompt_tokens=30, cached_tokens=0, completion_tokens=15)
    )
    scene.engine.journaled.hours = [JournalHour(start_s=hour.start_s, ended=third, died=hour.died)]
    assert (await scene.reconciliation.reconcile()).hours == (HourDrift(start, 1, 15),)
    assert b"loraplex_ledger_drift_tokens 15.0" in scene.metrics.text()
    scene.engine.is_connected = False
    assert (await scene.reconciliation.reconcile()).hours is None


async def test_a_person_is_told_what_is_open_and_a_program_whether_that_is_a_fault(
    scene: Scene, resources: Resources
) -> None:
    settings = resources.settings
    shell = Shell(settings.data_dir, settings.resolved_database_url)
    (clean,) = await asyncio.to_thread(shell.rows, "quota", "verify")
    assert {name: clean[name] for name in ("open_intents", "reserved", "unsettled", "drift")} == {
        "open_intents": 0,
        "reserved": 0,
        "unsettled": 0,
        "drift": 0,
    }
    async with scene.database.session() as session:
        await intents.open_all(session, [Opening(scene.template, unchecked=(scene.limit,))])
    told = await asyncio.to_thread(shell.run, "quota", "verify")
    assert told.exit_code == 1
    assert "1 open intent, 1 of them overdue" in told.stdout
    assert "in the database; the gateway counts in its own memory" in told.stdout
