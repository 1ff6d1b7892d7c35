"""Requests between their reservation and their line in the ledger.

Each request that was admitted is settled exactly once, in a task that this registry owns. Whoever
serves the request may be cancelled at any moment, and its client may be gone; the task goes on.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime

from msgspec.structs import replace

from loraplex.adapters.registry.resolution import ResolvedModel
from loraplex.engine.client import EngineClient
from loraplex.engine.protocol import Finished, Submit, Tokens, Usage
from loraplex.platform.adapter_uses import AdapterUse
from loraplex.platform.errors import EngineStopped, LedgerUnavailable
from loraplex.platform.ledger_writer import LedgerWriter
from loraplex.platform.metrics import GatewayMetrics
from loraplex.tenants.api_keys import Principal
from loraplex.tenants.errors import QuotaBackendUnavailable
from loraplex.tenants.ledger import FinishReason, UsageRecord
from loraplex.tenants.prices import Price, cost_pico
from loraplex.tenants.quotas import Hold, Quotas, Reservation

_log = logging.getLogger(__name__)

RENEW_EVERY_S = 20.0
MAX_RECENT = 1024
"""Requests that are remembered after their end."""
ANSWER_WAIT_S = 5.0
"""What an answer waits for the ledger; where that takes longer, the request is settled after it."""
SETTLE_TIMEOUT_S = 30.0
"""What settling may take at shutdown, whatever the requests themselves were given to end."""
GIVE_UP_S = 5.0
"""What it takes at most to give up after that: quotas are told as well."""


@dataclass(slots=True, kw_only=True)
class OpenRequest:
    """One admitted request: who pays, what runs, what came of it so far."""

    principal: Principal
    requested_model: str
    target: ResolvedModel
    submit: Submit
    accepted_at: datetime
    price: Price | None
    """As of `accepted_at`; later ones are for later requests."""
    use: AdapterUse
    holding: asyncio.Task[Hold] | None = None
    dispatched: bool = False
    """True from when the engine may have started on it; nothing before that is charged."""
    failed: bool = False
    """True if it ended through the platform's fault, not the client's."""
    num_delivered: int = 0
    """Output tokens that came from the engine."""
    first_token_at: datetime | None = None
    finished: Finished | None = None
    is_recorded: bool = False
    """True once its usage is in the ledger, or known to be none."""
    settling: asyncio.Task[None] | None = field(default=None, repr=False)

    def note(self, event: Tokens | Finished) -> None:
        """Count what the engine delivered."""
        if isinstance(event, Finished):
            self.finished = event
        else:
            self.num_delivered += len(event.ids)


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """What is kept of a request after its end, for those who ask why it took so long."""

    submit: Submit
    """Without its prompt."""
    model: str
    reason: FinishReason
    queue_ms: float
    waited_ms: Mapping[str, float]


class OpenRequests:
    """The registry. It holds all requests that are reserved and not settled."""

    def __init__(
        self,
        engine: EngineClient,
        quotas: Quotas,
        ledger: LedgerWriter,
        metrics: GatewayMetrics,
        now: Callable[[], datetime],
    ) -> None:
        self._engine = engine
        self._quotas = quotas
        self._ledger = ledger
        self._metrics = metrics
        self._now = now
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

    def __len__(self) -> int:
        return len(self._open)

    def find(self, request_id: str) -> OpenRequest | None:
        """A request that is open here."""
        return self._open.get(request_id)

    def find_ended(self, request_id: str) -> EndedRequest | None:
        """One of the last requests that ended here."""
        ended = reversed(self._recent)
        return next((each for each in ended if each.submit.request_id == request_id), None)

    async def reserve(self, request: OpenRequest) -> Hold:
        """Reserve the worst case of a request. Whatever happens then, call `close`.

        Raises:
            QuotaExceeded, RequestExceedsLimit: see `Quotas.reserve`.
            LedgerUnavailable: usage of others waits to be written already.
            EngineStopped: all was broken off, for the end.
        """
        if self._broken_off:
            raise EngineStopped
        if self._ledger.failing:
            raise LedgerUnavailable
        submit = request.submit
        asked = Reservation(
            request_id=submit.request_id,
            tenant_id=request.principal.tenant_id,
            limits=request.principal.limits,
            tokens=len(submit.prompt) + submit.sampling.n * submit.sampling.max_tokens,
            slots=submit.sampling.n,
        )
        # In a task of its own, so that a cancelled caller cannot leave a hold that nobody knows.
        request.holding = asyncio.create_task(self._quotas.reserve(asked))
        self._open[submit.request_id] = request
        self._idle.clear()
        # Who breaks it off pays for what ran, as if the client had left.
        request.use.end_with(lambda: self._settling(request))
        self._metrics.open_requests.set(len(self._open))
        return await asyncio.shield(request.holding)

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

    async def keep_renewing(self, every_s: float = RENEW_EVERY_S) -> None:
        """Renew the leases of all holds until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.renew()

    async def renew(self) -> None:
        """Renew the leases of all holds, so that long requests keep theirs."""
        for request in list(self._open.values()):
            hold = _hold_of(request)
            if hold is None:
                continue
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
            hold = _hold_of(request)
            if hold is not None and request.dispatched:
                await self._charge(request, hold)
            elif hold is not None:
                await _told(hold, self._quotas.release(hold))
        except (Exception, asyncio.CancelledError):  # noqa: BLE001  nobody waits who could do better
            self._num_unsettled += not request.is_recorded
            self._metrics.settlement_failures.inc()
            _log.exception("request %s was not settled", request.submit.request_id)
        finally:
            self._forget(request.submit.request_id)

    async def _charge(self, request: OpenRequest, hold: Hold) -> None:
        record = self._record(request, request.finished)
        try:
            if request.finished is None:
                ending = await self._engine.abort(request.submit.request_id)
                record = self._record(request, ending)
            if _is_owed(record):
                await self._ledger.append(record)
            request.is_recorded = True
        except BaseException:  # a cancel too: shutdown has given it up
            # The line has what the ledger lacks.
            _log.error("usage is not in the ledger", extra={"fields": {"usage": asdict(record)}})
            raise
        finally:
            await _told(hold, self._end(hold, record))
        self._metrics.prompt_tokens.inc(record.prompt_tokens)
        self._metrics.completion_tokens.inc(record.completion_tokens)

    async def _end(self, hold: Hold, record: UsageRecord) -> None:
        if _is_owed(record):
            await self._quotas.settle(hold, record.prompt_tokens + record.completion_tokens)
        else:
            await self._quotas.release(hold)

    def _record(self, request: OpenRequest, ending: Finished | None) -> UsageRecord:
        """What is owed: what the engine ran or, if it died, what it delivered."""
        submit = request.submit
        usage = _delivered(request) if ending is None else ending.usage
        price, reason = request.price, _reason(request, ending)
        return UsageRecord(
            request_id=submit.request_id,
            tenant_id=request.principal.tenant_id,
            key_id=request.principal.key_id,
            requested_model=request.requested_model,
            model=request.target.name,
            adapter_digest=request.target.digest,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            finish_reason=reason,
            accepted_at=request.accepted_at,
            first_token_at=request.first_token_at,
            finished_at=self._now(),
            queue_ms=0.0 if ending is None else ending.queue_ms,
            price_id=None if price is None else price.id,
            currency=None if price is None else price.currency,
            # Nobody pays for what the platform broke off.
            cost_pico=0 if price is None or reason == "error" else _cost_pico(price, usage),
        )

    def _forget(self, request_id: str) -> None:
        request = self._open.pop(request_id)
        if request.dispatched:
            self._recent.append(_ended(request))
        self._metrics.open_requests.set(len(self._open))
        if not self._open:
            self._idle.set()


def _is_owed(record: UsageRecord) -> bool:
    """False for a request whose client left before anything ran."""
    return record.finish_reason != "abort" or record.prompt_tokens + record.completion_tokens > 0


def _hold_of(request: OpenRequest) -> Hold | None:
    """The hold, if the reservation was made. Whoever asked for it was told why it was not."""
    holding = request.holding
    if holding is None or not holding.done() or holding.cancelled() or holding.exception():
        return None
    return holding.result()


async def _told(hold: Hold, ending: Coroutine[None, None, None]) -> None:
    """Tell the quotas that a hold ends; what they are not told, its lease tells them."""
    try:
        await ending
    except QuotaBackendUnavailable as error:
        _log.warning("the hold of request %s ends with its lease: %s", hold.request_id, error)
    except Exception:  # noqa: BLE001  what matters to the tenant is in the ledger
        _log.exception("the hold of request %s ends with its lease", hold.request_id)


def _reason(request: OpenRequest, ending: Finished | None) -> FinishReason:
    return "error" if ending is None or request.failed else ending.reason


def _ended(request: OpenRequest) -> EndedRequest:
    finished = request.finished
    return EndedRequest(
        submit=replace(request.submit, prompt=()),
        model=request.target.name,
        reason=_reason(request, finished),
        queue_ms=0.0 if finished is None else finished.queue_ms,
        waited_ms={} if finished is None else finished.waited_ms,
    )


def _cost_pico(price: Price, usage: Usage) -> int:
    return cost_pico(
        price.tokens, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
    )


def _delivered(request: OpenRequest) -> Usage:
    prompt_tokens = len(request.submit.prompt) if request.num_delivered else 0
    return Usage(
        prompt_tokens=prompt_tokens, cached_tokens=0, completion_tokens=request.num_delivered
    )
