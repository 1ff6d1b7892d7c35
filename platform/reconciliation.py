"""Compares what the quota store, the worker's journal and the database know of the same requests.

- Σ charged + Σ open intents + adjustments of a budget = what the store counts of it
  (`store_comparison.py`).
- Σ journal = Σ ledger of its requests, by the hour in which they were accepted.

The database is right. A store that differs is told anew; what the ledger lacks is logged.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from loraplex.engine.client import EngineClient
from loraplex.engine.journal_protocol import JournalEntry
from loraplex.platform.admission import Admission
from loraplex.platform.metrics import GatewayMetrics
from loraplex.platform.store_comparison import BudgetDrift, compare_budget, compare_holds
from loraplex.tenants import intents
from loraplex.tenants.db import Database
from loraplex.tenants.known_budgets import known_budgets
from loraplex.tenants.ledger import UsageFilter, UsageRecord, find_usage
from loraplex.tenants.quotas import Quotas

_log = logging.getLogger(__name__)

EVERY_S = 3600.0
HOUR = timedelta(hours=1)
HOURS = 3
"""So many whole hours are compared with the journal, but for the last one: some of its requests
may still run."""
IDS_AT_A_TIME = 1000


@dataclass(frozen=True, slots=True)
class HourDrift:
    """What the journal has of an hour, less what the ledger has of the same requests."""

    start: datetime
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found."""

    open_intents: int
    open_tokens: int
    """Of these, at most."""
    overdue: int
    """Of these, those whose leases are over: nobody has settled them."""
    store_tokens: int
    """What open holds reserve in the store."""
    unheld_tokens: int
    """Of `open_tokens`, those that no hold reserves in the store, after it was away for example."""
    held_drift: int
    """Of `store_tokens`, those of requests that have no intent, or one of another size."""
    num_budgets: int
    """That the store knows, and that were compared."""
    num_unknown: int
    """That it does not know: they are reckoned when they are next needed."""
    budgets: tuple[BudgetDrift, ...]
    hours: tuple[HourDrift, ...] | None
    """Those that differ; None where no worker answers, or it keeps no journal."""
    num_requests: int
    """Rows of the ledger that were compared with the journal."""


class Comparer:
    """Reads, and changes nothing."""

    def __init__(
        self, database: Database, quotas: Quotas, engine: EngineClient, now: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._quotas = quotas
        self._engine = engine
        self._now = now

    async def compare(self) -> Comparison:
        """Compare all. Raises what the database does, and QuotaBackendUnavailable."""
        now = self._now()
        async with self._database.reader() as session:
            sums = await intents.open_sums(session, now)
            known = await known_budgets(session, now)
        found = [await compare_budget(self._database, self._quotas, each) for each in known]
        compared = [each for each in found if each is not None]
        holds = [
            await compare_holds(self._database, self._quotas, tenant_id)
            for tenant_id in sorted({each.budget.tenant_id for each in known} | sums.keys())
        ]
        hours, num_requests = await self._compare_hours(now)
        return Comparison(
            open_intents=sum(each.intents for each in sums.values()),
            open_tokens=sum(each.tokens for each in sums.values()),
            overdue=sum(each.overdue for each in sums.values()),
            store_tokens=sum(each.held for each in holds),
            unheld_tokens=sum(each.unheld for each in holds),
            held_drift=sum(each.drift for each in holds),
            num_budgets=len(compared),
            num_unknown=len(found) - len(compared),
            budgets=tuple(each for each in compared if each.store != each.database),
            hours=hours,
            num_requests=num_requests,
        )

    async def _compare_hours(self, now: datetime) -> tuple[tuple[HourDrift, ...] | None, int]:
        """The hours that differ, and how many rows of the ledger were looked at."""
        until = now.replace(minute=0, second=0, microsecond=0) - HOUR
        start = until - HOURS * HOUR
        totals = await self._engine.journal_totals(start.timestamp(), until.timestamp())
        if totals is None:
            return None, 0
        journaled = {hour.start_s: hour.ended for hour in totals.hours}
        drifts, num_requests = [], 0
        for number in range(HOURS):
            at = start + number * HOUR
            if at.timestamp() < totals.since_s:
                continue
            requests, tokens = await self._of_ledger(at)
            num_requests += requests
            ended = journaled.get(int(at.timestamp()))
            if ended is not None:
                requests -= ended.num_requests
                tokens -= ended.usage.prompt_tokens + ended.usage.completion_tokens
            if requests or tokens:
                drifts.append(HourDrift(at, -requests, -tokens))
        return tuple(drifts), num_requests

    async def _of_ledger(self, start: datetime) -> tuple[int, int]:
        """Requests and tokens of an hour in the ledger, of those that ended in this worker.

        Page by page, so that no transaction lasts while the worker is asked.
        """
        requests = tokens = 0
        asked, after = UsageFilter(since=start, until=start + HOUR), None
        while True:
            async with self._database.reader() as session:
                page = await find_usage(session, asked, IDS_AT_A_TIME, after)
            of_page = await self._ran_here(page, start)
            requests, tokens = requests + of_page[0], tokens + of_page[1]
            if len(page) < IDS_AT_A_TIME:
                return requests, tokens
            after = page[-1].request_id

    async def _ran_here(self, records: Sequence[UsageRecord], start: datetime) -> tuple[int, int]:
        if not records:
            return 0, 0
        report = await self._engine.journal(
            [each.request_id for each in records], start.timestamp()
        )
        ended = {
            each.request_id: each
            for each in (report.entries if report is not None else ())
            if each.state == "ended" and each.usage.prompt_tokens + each.usage.completion_tokens
        }
        counted = [
            _tokens(record, ended[record.request_id])
            for record in records
            if record.request_id in ended
        ]
        return len(counted), sum(counted)


class Reconciliation:
    """Compares every hour, and when a gateway has died; tells stores anew where they differ."""

    def __init__(self, comparer: Comparer, admission: Admission, metrics: GatewayMetrics) -> None:
        self._comparer = comparer
        self._admission = admission
        self._metrics = metrics
        self._wanted = asyncio.Event()

    def soon(self) -> None:
        """Compare now, rather than within the hour."""
        self._wanted.set()

    async def run(self) -> None:
        """Compare until cancelled, at once and then every hour."""
        while True:
            try:
                await self.reconcile()
            except Exception as error:  # noqa: BLE001  the next one may find them there again
                _log.warning("ledger, journal and quotas were not compared; retrying: %r", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._wanted.wait()
            self._wanted.clear()

    async def reconcile(self) -> Comparison:
        """Compare once, and mend what can be mended."""
        found = await self._comparer.compare()
        metrics = self._metrics.ledger
        metrics.open_intents.set(found.open_intents)
        metrics.overdue_intents.set(found.overdue)
        metrics.drift_budgets.set(len(found.budgets))
        for drift in found.budgets:
            _log.error(
                "the quota store counts %d of %s, the database %d; it is told anew",
                drift.store,
                drift.known.name,
                drift.database,
            )
            await self._admission.reckon(drift.known.budget.tenant_id, [drift.known.limit])
        if found.hours is not None:
            metrics.drift_requests.set(sum(hour.requests for hour in found.hours))
            metrics.drift_tokens.set(sum(hour.tokens for hour in found.hours))
            for hour in found.hours:
                _log.error(
                    "of the hour of %s the ledger lacks %d requests and %d tokens of the journal",
                    hour.start.isoformat(),
                    hour.requests,
                    hour.tokens,
                )
        return found


def _tokens(record: UsageRecord, entry: JournalEntry) -> int:
    """What counts as the ledger's: of a request that its gateway broke off without hearing of its
    end, what had been delivered is less than what ran, and costs nothing."""
    if record.billable or record.source != "measured":
        return record.prompt_tokens + record.completion_tokens
    return entry.usage.prompt_tokens + entry.usage.completion_tokens
