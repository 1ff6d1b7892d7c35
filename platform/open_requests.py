"""Requests between their reservation and their line in the ledger.

Each request that was admitted is settled exactly once, in a task that this registry owns. Whoever
serves the request may be cancelled at any moment, and its client may be gone; the task goes on.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from datetime import datetime

from loraplex.engine.client import EngineClient
from loraplex.platform.admission import Admission
from loraplex.platform.errors import EngineStopped, LedgerUnavailable
from loraplex.platform.ledger_writer import LedgerWriter
from loraplex.platform.metrics import GatewayMetrics
from loraplex.platform.open_request import (
    EndedRequest,
    OpenRequest,
    ended,
    intent_of,
    is_owed,
    record_of,
    reservation_of,
)
from loraplex.tenants.errors import QuotaBackendUnavailable, UsageConflict
from loraplex.tenants.leases import Lease
from loraplex.tenants.ledger import UsageRecord
from loraplex.tenants.orphans import used_by
from loraplex.tenants.quotas import Quotas
from loraplex.tenants.reservations import Hold

_log = logging.getLogger(__name__)

MAX_RECENT = 1024
"""Requests that are remembered after their end."""
ANSWER_WAIT_S = 5.0
"""What an answer waits for the ledger; where that takes longer, the request is settled after it."""
SETTLE_TIMEOUT_S = 30.0
"""What settling may take at shutdown, whatever the requests themselves were given to end."""
GIVE_UP_S = 5.0
"""What it takes at most to give up after that: quotas are told as well."""


class OpenRequests:
    """The registry. It holds all requests that are reserved and not settled."""

    def __init__(
        self,
        engine: EngineClient,
        quotas: Quotas,
        ledger: LedgerWriter,
        admission: Admission,
        lease: Lease,
        metrics: GatewayMetrics,
        now: Callable[[], datetime],
    ) -> None:
        self._engine = engine
        self._quotas = quotas
        self._ledger = ledger
        self._metrics = metrics
        self._now = now
        self._admission = admission
        self._lease = lease
        self._open: dict[str, OpenRequest] = {}
        self._recent: deque[EndedRequest] = deque(maxlen=MAX_RECENT)
        self._num_unsettled = 0
        self._broken_off = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_unsettled(self) -> int:
        """Requests that were given up; what is known of their usage stands in the log."""
        return self._num_unsettled

    @property
    def is_ledger_failing(self) -> bool:
        """True while usage waits for the database; no request is taken then."""
        return self._ledger.failing

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[OpenRequest]:
        """All that are open here."""
        return list(self._open.values())

    def find(self, request_id: str) -> OpenRequest | None:
        """A request that is open here."""
        return self._open.get(request_id)

    def find_ended(self, request_id: str) -> EndedRequest | None:
        """One of the last requests that ended here."""
        newest = reversed(self._recent)
        return next((each for each in newest if each.submit.request_id == request_id), None)

    async def reserve(self, request: OpenRequest) -> Hold:
        """Reserve the worst case of a request, and write its intent. Whatever happens then, call
        `close`.

        Raises:
            QuotaError: see `Admission.admit`.
            LedgerUnavailable: its intent, or already usage of others, cannot be written.
            EngineStopped: all was broken off, for the end.
        """
        if self._broken_off:
            raise EngineStopped
        if self._ledger.failing:
            raise LedgerUnavailable
        request.lease_until = self._now() + self._lease.length
        intent = intent_of(request, self._lease, request.lease_until)
        # In a task of its own, so that a cancelled caller cannot leave a hold that nobody knows.
        admitting = self._admission.admit(reservation_of(request), intent, request.limits_now)
        request.holding = asyncio.create_task(admitting)
        self._open[intent.request_id] = request
        self._idle.clear()
        # Who breaks it off pays for what ran, as if the client had left.
        request.use.end_with(lambda: self._settling(request))
        self._metrics.open_requests.set(len(self._open))
        return await asyncio.shield(request.holding)

    def dispatch(self, request: OpenRequest) -> None:
        """Note that the engine is told of a request now; from here on it is charged.

        Raises:
            EngineStopped: it was broken off since it was admitted: nobody would count what ran.
            LedgerUnavailable: it has waited for so long that others may have settled it.
        """
        if request.settling is not None:
            raise EngineStopped
        if request.lease_until is None or request.lease_until <= self._now():
            raise LedgerUnavailable
        request.dispatched = True

    async def close(self, request: OpenRequest) -> None:
        """Settle the request, once. It is settled when this returns, unless that takes long: then
        it goes on by itself, as it does when the caller is cancelled."""
        if request.holding is None:
            return
        await asyncio.wait([self._settling(request)], timeout=ANSWER_WAIT_S)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until no request is open, at most `timeout_s`; False if some are open then."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def break_off(self) -> None:
        """End all requests in the engine, now, and begin to settle them; nobody pays for them, and
        no others are taken."""
        self._broken_off = True
        for request in self._open.values():
            if request.settling is None:
                request.failed |= request.finished is None
                self._settling(request)

    async def settle_all(self, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Break off what is open and wait until it is settled; after `timeout_s` it is given up,
        and each request's usage is logged."""
        self.break_off()
        if await self.drain(timeout_s):
            return
        _log.error("%d requests are not settled after %s s", len(self._open), timeout_s)
        settling = [self._settling(request) for request in self._open.values()]
        for task in settling:
            task.cancel()
        await asyncio.wait(settling, timeout=GIVE_UP_S)

    async def keep_renewing(self) -> None:
        """Renew the leases of all intents and holds until cancelled."""
        while True:
            await asyncio.sleep(self._lease.renew_s)
            await self.renew()

    async def renew(self) -> None:
        """Renew the leases of all intents and holds, so that long requests keep theirs."""
        admitted = [request for request in self._open.values() if request.hold is not None]
        await self._renew_intents(admitted)
        await self._renew_holds([request.hold for request in admitted if request.hold is not None])

    async def _renew_intents(self, requests: Sequence[OpenRequest]) -> None:
        until = self._now() + self._lease.length
        delivered = {each.submit.request_id: each.num_delivered for each in requests}
        try:
            gone = await self._admission.renew(self._lease, until, delivered)
        except Exception as error:  # noqa: BLE001  the next renewal may find the database there again
            _log.warning("the intents of open requests were not renewed: %s", error)
            return
        for request in requests:
            if request.submit.request_id not in gone:
                request.lease_until = until
            elif request.settling is None:
                _log.error("request %s was settled by others", request.submit.request_id)
                request.failed |= request.finished is None
                self._settling(request)

    async def _renew_holds(self, holds: Sequence[Hold]) -> None:
        for hold in holds:
            try:
                await self._quotas.renew(hold)
            except QuotaBackendUnavailable as error:
                # The others would fail as well, and each would wait for it.
                _log.warning("the holds of open requests were not renewed: %s", error)
                return
            except Exception:  # noqa: BLE001  one that fails must not stop the others
                _log.exception("the hold of request %s was not renewed", hold.request_id)

    def _settling(self, request: OpenRequest) -> asyncio.Task[None]:
        """The one task that settles the request."""
        if request.settling is None:
            request.settling = asyncio.create_task(self._settle(request))
        return request.settling

    async def _settle(self, request: OpenRequest) -> None:
        try:
            assert request.holding is not None
            if not request.holding.done():
                await asyncio.wait([request.holding])
            hold = request.hold
            if hold is not None and request.dispatched:
                await self._charge(request, hold)
            elif hold is not None:
                await self._void(request, hold)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001  nobody waits who could do better
            self._num_unsettled += not request.is_recorded
            self._metrics.settlement_failures.inc()
            _log.exception("request %s was not settled", request.submit.request_id)
        finally:
            self._forget(request.submit.request_id)

    async def _void(self, request: OpenRequest, hold: Hold) -> None:
        """Nothing ran. Should the intent stay, others remove it when its lease is over."""
        request.is_recorded = True
        try:
            await self._ledger.void(hold.request_id)
        finally:
            await _told(hold, self._quotas.release(hold))

    async def _charge(self, request: OpenRequest, hold: Hold) -> None:
        record = record_of(request, request.finished, self._now())
        try:
            if request.finished is None:
                ending = await self._engine.abort(request.submit.request_id)
                record = record_of(request, ending, self._now())
            await self._write(record)
            request.is_recorded = True
        except BaseException:  # a cancel too: shutdown has given it up
            # The line has what the ledger lacks.
            _log.error("usage is not in the ledger", extra={"fields": {"usage": asdict(record)}})
            raise
        finally:
            await _told(hold, self._end(hold, record))
        self._metrics.prompt_tokens.inc(record.prompt_tokens)
        self._metrics.completion_tokens.inc(record.completion_tokens)

    async def _write(self, record: UsageRecord) -> None:
        """Write what is owed, and end the intent."""
        if not is_owed(record):
            await self._ledger.void(record.request_id)
            return
        try:
            await self._ledger.append(record)
        except UsageConflict as error:
            # Whoever took this gateway for dead was first; what is in the ledger stays.
            self._metrics.ledger.usage_conflicts.inc()
            _log.warning("the ledger keeps what it had: %s", error)

    async def _end(self, hold: Hold, record: UsageRecord) -> None:
        if is_owed(record):
            await self._quotas.settle(hold, used_by(record))
        else:
            await self._quotas.release(hold)

    def _forget(self, request_id: str) -> None:
        request = self._open.pop(request_id)
        if request.dispatched:
            self._recent.append(ended(request))
        self._metrics.open_requests.set(len(self._open))
        if not self._open:
            self._idle.set()


async def _told(hold: Hold, ending: Coroutine[None, None, None]) -> None:
    """Tell the quotas that a hold ends; what they are not told, its lease tells them."""
    try:
        await ending
    except QuotaBackendUnavailable as error:
        _log.warning("the hold of request %s ends with its lease: %s", hold.request_id, error)
    except Exception:  # noqa: BLE001  what matters to the tenant is in the ledger
        _log.exception("the hold of request %s ends with its lease", hold.request_id)
