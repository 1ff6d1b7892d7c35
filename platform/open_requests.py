"""Requests between their reservation and their line in the ledger.

Each request that was admitted is settled exactly once, in a task that this registry owns. Whoever
serves the request may be cancelled at any moment, and its client may be gone; the task goes on.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime

from sqlalchemy.exc import SQLAlchemyError

from loraplex.adapters.registry.registry import ResolvedModel
from loraplex.engine.client import EngineClient
from loraplex.engine.protocol import Finished, Submit, Tokens, Usage
from loraplex.platform.ledger_writer import LedgerWriter
from loraplex.platform.metrics import GatewayMetrics
from loraplex.tenants.api_keys import Principal
from loraplex.tenants.errors import QuotaBackendUnavailable
from loraplex.tenants.ledger import FinishReason, UsageRecord
from loraplex.tenants.prices import Price, cost_pico
from loraplex.tenants.quotas import Hold, Quotas, Reservation

_log = logging.getLogger(__name__)

APPEND_DELAYS_S = (0.0, 0.1, 1.0)
"""Pauses before the attempts to write to the ledger."""
RENEW_EVERY_S = 20.0


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
    holding: asyncio.Task[Hold] | None = None
    dispatched: bool = False
    """True from when the engine may have started on it; nothing before that is charged."""
    failed: bool = False
    """True if it ended through the platform's fault, not the client's."""
    num_delivered: int = 0
    """Output tokens that came from the engine."""
    first_token_at: datetime | None = None
    finished: Finished | None = None
    settling: asyncio.Task[None] | None = field(default=None, repr=False)

    def note(self, event: Tokens | Finished) -> None:
        """Count what the engine delivered."""
        if isinstance(event, Finished):
            self.finished = event
        else:
            self.num_delivered += len(event.ids)


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
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._open)

    async def reserve(self, request: OpenRequest) -> Hold:
        """Reserve the worst case of a request. Whatever happens then, call `close`.

        Raises:
            QuotaExceeded, RequestExceedsLimit: see `Quotas.reserve`.
        """
        submit = request.submit
        asked = Reservation(
            request_id=submit.request_id,
            tenant_id=request.principal.tenant_id,
            limits=request.principal.limits,
            tokens=len(submit.prompt) + submit.sampling.n * submit.sampling.max_tokens,
        )
        # In a task of its own, so that a cancelled caller cannot leave a hold that nobody knows.
        request.holding = asyncio.create_task(self._quotas.reserve(asked))
        self._open[submit.request_id] = request
        self._idle.clear()
        self._metrics.open_requests.set(len(self._open))
        return await asyncio.shield(request.holding)

    async def close(self, request: OpenRequest) -> None:
        """Settle the request, once; the caller may be cancelled while it waits for that."""
        if request.holding is None:
            return
        if request.settling is None:
            request.settling = asyncio.create_task(self._settle(request))
        await asyncio.shield(request.settling)

    async def drain(self, timeout_s: float) -> None:
        """Wait until no request is open, at most `timeout_s`; log what is left."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            _log.error("requests that are not settled at shutdown: %s", ", ".join(self._open))

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

    async def _settle(self, request: OpenRequest) -> None:
        try:
            assert request.holding is not None
            await asyncio.wait([request.holding])
            hold = _hold_of(request)
            if hold is not None and request.dispatched:
                await self._charge(request, hold)
            elif hold is not None:
                await self._quotas.release(hold)
        except Exception:  # noqa: BLE001  nobody awaits this task who could do better
            self._metrics.settlement_failures.inc()
            _log.exception("request %s was not settled", request.submit.request_id)
        finally:
            self._forget(request.submit.request_id)

    async def _charge(self, request: OpenRequest, hold: Hold) -> None:
        record = await self._record(request)
        try:
            await self._append(record)
        finally:
            await self._quotas.settle(hold, record.prompt_tokens + record.completion_tokens)
        self._metrics.prompt_tokens.inc(record.prompt_tokens)
        self._metrics.completion_tokens.inc(record.completion_tokens)

    async def _record(self, request: OpenRequest) -> UsageRecord:
        """What is owed: what the engine ran or, if it died, what it delivered."""
        submit = request.submit
        ending = request.finished or await self._engine.abort(submit.request_id)
        usage = _delivered(request) if ending is None else ending.usage
        reason: FinishReason = "error" if ending is None or request.failed else ending.reason
        price = request.price
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

    async def _append(self, record: UsageRecord) -> None:
        """Write to the ledger; a database that fails for a moment is tried again."""
        *retried, last_delay_s = APPEND_DELAYS_S
        for delay_s in retried:
            await asyncio.sleep(delay_s)
            with suppress(SQLAlchemyError):
                return await self._ledger.append(record)
        await asyncio.sleep(last_delay_s)
        try:
            return await self._ledger.append(record)
        except Exception:
            # The line has what the ledger lacks.
            _log.error("usage is not in the ledger", extra={"fields": {"usage": asdict(record)}})
            raise

    def _forget(self, request_id: str) -> None:
        del self._open[request_id]
        self._metrics.open_requests.set(len(self._open))
        if not self._open:
            self._idle.set()


def _hold_of(request: OpenRequest) -> Hold | None:
    """The hold, if the reservation was made. Whoever asked for it was told why it was not."""
    holding = request.holding
    if holding is None or not holding.done() or holding.cancelled() or holding.exception():
        return None
    return holding.result()


def _cost_pico(price: Price, usage: Usage) -> int:
    return cost_pico(
        price.tokens, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
    )


def _delivered(request: OpenRequest) -> Usage:
    prompt_tokens = len(request.submit.prompt) if request.num_delivered else 0
    return Usage(
        prompt_tokens=prompt_tokens, cached_tokens=0, completion_tokens=request.num_delivered
    )
