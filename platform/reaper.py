"""Settles what gateways that died have left: intents whose leases are over.

Every gateway looks for them. It claims each (no two can), gives its owner the time of a renewal to
take it back, and then asks the worker's journal what became of the request:

- it runs: nothing is done yet;
- it ended, or died with its worker: its tokens are recorded, `source=journal`;
- the journal never took it: nothing ran, and the intent is removed;
- the journal does not reach back so far, or output was delivered all the same: it is recorded at
  the count of the last renewal, `source=estimated`.

Nobody pays for any of it: what the gateway had not recorded may never have been delivered.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from loraplex.engine.client import EngineClient
from loraplex.engine.journal_protocol import JournalEntry, JournalReport
from loraplex.engine.usage import Usage
from loraplex.platform.metrics import GatewayMetrics
from loraplex.tenants import intents
from loraplex.tenants.db import Database
from loraplex.tenants.errors import QuotaBackendUnavailable, UsageConflict
from loraplex.tenants.intents import Intent
from loraplex.tenants.leases import Lease
from loraplex.tenants.ledger import UsageRecord, UsageSource, append_all
from loraplex.tenants.orphans import currencies, hold_of, used_by
from loraplex.tenants.quotas import Quotas
from loraplex.tenants.reservations import Hold

_log = logging.getLogger(__name__)

MAX_AT_A_TIME = 200
CLOCK_MARGIN = timedelta(minutes=5)
"""What clocks of machines may differ by, when the journal is told how far back to look."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to become of an intent."""

    kind: Literal["wait", "void", "record"]
    usage: Usage | None = None
    source: UsageSource = "journal"
    entry: JournalEntry | None = None


WAIT, VOID = Verdict("wait"), Verdict("void")


class Reaper:
    """One gateway's part in settling for those that died."""

    def __init__(
        self,
        lease: Lease,
        database: Database,
        engine: EngineClient,
        quotas: Quotas,
        metrics: GatewayMetrics,
        now: Callable[[], datetime],
    ) -> None:
        self._lease = lease
        self._gateway_id = lease.gateway_id
        self._database = database
        self._engine = engine
        self._quotas = quotas
        self._metrics = metrics
        self._now = now
        self._claimed: dict[str, datetime] = {}
        """Request id to the time from which its owner has had its chance."""
        self.is_open_here: Callable[[str], bool] = lambda _: False
        """Tells of a request's id if this gateway serves it."""
        self.on_reaped: Callable[[], object] = lambda: None
        """Hears that something was settled for a gateway that died."""

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            try:
                await self.sweep()
            except Exception as error:  # noqa: BLE001  the next one may find the database there again
                _log.warning("intents of others were not looked after; retrying: %r", error)
            await asyncio.sleep(self._lease.sweep_s)

    async def sweep(self) -> None:
        """Claim what is over, and settle what was claimed long enough ago."""
        now = self._now()
        async with self._database.session() as session:
            claimed = await intents.claim(
                session, self._gateway_id, now, now + self._lease.length, MAX_AT_A_TIME
            )
        for intent in claimed:
            self._claimed[intent.request_id] = now + self._lease.grace
        due = [id_ for id_, at in self._claimed.items() if at <= now and not self.is_open_here(id_)]
        if due:
            await self._settle(due[:MAX_AT_A_TIME])

    async def _settle(self, request_ids: Collection[str]) -> None:
        async with self._database.reader() as session:
            found = await intents.held(session, self._gateway_id, request_ids)
        for request_id in set(request_ids) - found.keys():
            del self._claimed[request_id]  # its owner is alive, or it was settled
        if not found:
            return
        verdicts = await self._verdicts(found)
        waiting = [id_ for id_, verdict in verdicts.items() if verdict.kind == "wait"]
        settled = await self._write(
            {id_: verdict for id_, verdict in verdicts.items() if verdict.kind != "wait"}, waiting
        )
        for hold in settled:
            self._claimed.pop(hold.request_id, None)
            await self._tell_store(hold)
        self._metrics.ledger.reaped_intents.inc(len(settled))
        if settled:
            self.on_reaped()

    async def _verdicts(self, found: Mapping[str, Intent]) -> dict[str, Verdict]:
        oldest = min(intent.accepted_at for intent in found.values()) - CLOCK_MARGIN
        report = await self._engine.journal(list(found), oldest.timestamp())
        if report is None:
            return dict.fromkeys(found, WAIT)
        return verdicts_of(found, report)

    async def _write(self, verdicts: Mapping[str, Verdict], waiting: Collection[str]) -> list[Hold]:
        """Settle in the database, and return the holds that end thereby."""
        now = self._now()
        async with self._database.session() as session:
            await intents.postpone(session, self._gateway_id, waiting, now + self._lease.length)
            # Locked: whoever has taken one back since is left alone, and waits if it comes now.
            still = await intents.held(session, self._gateway_id, verdicts)
            priced_in = await currencies(session, still.values())
            records = [
                record_of(intent, verdicts[id_], priced_in, now)
                for id_, intent in still.items()
                if verdicts[id_].kind == "record"
            ]
            await intents.close(session, still.keys())
            fates = await append_all(session, records) if records else []
            holds = [await hold_of(session, intent) for intent in still.values()]
        for record, fate in zip(records, fates, strict=True):
            if isinstance(fate, UsageConflict):
                self._metrics.ledger.usage_conflicts.inc()
                _log.warning("the ledger keeps what it had: %s", fate)
            else:
                _log.warning(
                    "request %s was settled for a gateway that died: %d output tokens, %s",
                    record.request_id,
                    record.completion_tokens,
                    record.source,
                )
        return holds

    async def _tell_store(self, hold: Hold) -> None:
        try:
            await self._quotas.settle(hold, used_by(None))
        except QuotaBackendUnavailable as error:
            _log.warning("budgets wait for the next comparison with the database: %s", error)


def verdicts_of(found: Mapping[str, Intent], report: JournalReport) -> dict[str, Verdict]:
    """What the journal's report means for each intent."""
    entries = {entry.request_id: entry for entry in report.entries}
    return {
        request_id: _verdict(intent, entries.get(request_id), report.since_s)
        for request_id, intent in found.items()
    }


def _verdict(intent: Intent, entry: JournalEntry | None, since_s: float) -> Verdict:
    if entry is not None:
        if entry.state == "open":
            return WAIT
        usage = entry.usage
        if usage.prompt_tokens + usage.completion_tokens == 0:
            return VOID
        return Verdict("record", usage, "journal", entry)
    delivered = intent.delivered_tokens
    if delivered == 0 and intent.accepted_at.timestamp() >= since_s:
        return VOID
    prompt_tokens = intent.prompt_tokens if delivered else 0
    usage = Usage(prompt_tokens=prompt_tokens, cached_tokens=0, completion_tokens=delivered)
    return Verdict("record", usage, "estimated")


def record_of(
    intent: Intent, verdict: Verdict, priced_in: Mapping[str, str], now: datetime
) -> UsageRecord:
    """What the ledger is told of a request whose gateway died."""
    usage, entry = verdict.usage, verdict.entry
    assert usage is not None
    ended_at = now
    if entry is not None and entry.ended_at_s is not None:
        ended_at = datetime.fromtimestamp(entry.ended_at_s, now.tzinfo)
    return UsageRecord(
        request_id=intent.request_id,
        tenant_id=intent.tenant_id,
        project_id=intent.project_id,
        key_id=intent.key_id,
        requested_model=intent.requested_model,
        model=intent.model,
        adapter_digest=intent.adapter_digest,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        finish_reason="error",
        accepted_at=intent.accepted_at,
        first_token_at=None,
        finished_at=max(ended_at, intent.accepted_at),
        queue_ms=0.0,
        price_id=intent.price_id,
        currency=None if intent.price_id is None else priced_in.get(intent.price_id),
        cost_pico=0,
        source=verdict.source,
        billable=False,
        service_tier=intent.service_tier,
        output_digest=None
        if entry is None or not entry.output_digest
        else entry.output_digest.hex(),
    )
