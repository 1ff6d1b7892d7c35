"""One request from its admission to its line in the ledger: what it may cost, and what it did."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from msgspec.structs import replace

from loraplex.adapters.registry.resolution import ResolvedModel
from loraplex.engine.protocol import Finished, Submit, Tokens, Usage
from loraplex.platform.adapter_uses import AdapterUse
from loraplex.tenants.api_keys import Principal
from loraplex.tenants.intents import Intent
from loraplex.tenants.leases import Lease
from loraplex.tenants.ledger import FinishReason, UsageRecord
from loraplex.tenants.money import micros_rounded_up
from loraplex.tenants.prices import Price, cost_pico, max_cost_pico
from loraplex.tenants.reservations import Amounts, Hold, Reservation
from loraplex.tenants.scoped_limits import ScopedLimit


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
    limits: tuple[ScopedLimit, ...]
    """Of every scope, as of `catalogue_version`."""
    limits_now: Callable[[], Awaitable[tuple[ScopedLimit, ...]]]
    """Finds them again, if they have changed before it is admitted."""
    catalogue_version: int
    """As of which its key, project and tenant are known to be in force."""
    use: AdapterUse
    holding: asyncio.Task[Hold] | None = None
    lease_until: datetime | None = None
    """Until when nobody else settles it."""
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

    @property
    def hold(self) -> Hold | None:
        """The hold, if it was admitted. Whoever asked for it was told why it was not."""
        holding = self.holding
        if holding is None or not holding.done() or holding.cancelled() or holding.exception():
            return None
        return holding.result()

    @property
    def max_output_tokens(self) -> int:
        """Of all choices, as the engine is told."""
        return self.submit.sampling.n * self.submit.sampling.max_tokens

    def note(self, event: Tokens | Finished, now: Callable[[], datetime]) -> None:
        """Count what the engine delivered."""
        if isinstance(event, Finished):
            self.finished = event
            return
        if self.first_token_at is None:
            self.first_token_at = now()
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


def reservation_of(request: OpenRequest) -> Reservation:
    """What it asks for: its prompt, and of each choice as many tokens as the engine may make."""
    worst = Amounts(
        input_tokens=len(request.submit.prompt),
        output_tokens=request.max_output_tokens,
        cost_micros=micros_rounded_up(_max_cost_pico(request)),
        slots=request.submit.sampling.n,
    )
    principal = request.principal
    return Reservation(request.submit.request_id, principal.tenant_id, request.limits, worst)


def intent_of(request: OpenRequest, lease: Lease, lease_until: datetime) -> Intent:
    """What is written of it before it runs."""
    return Intent(
        request_id=request.submit.request_id,
        tenant_id=request.principal.tenant_id,
        project_id=request.principal.project_id,
        key_id=request.principal.key_id,
        gateway_id=lease.gateway_id,
        requested_model=request.requested_model,
        model=request.target.name,
        adapter_digest=request.target.digest,
        price_id=None if request.price is None else request.price.id,
        prompt_tokens=len(request.submit.prompt),
        max_output_tokens=request.max_output_tokens,
        max_cost_pico=_max_cost_pico(request),
        accepted_at=request.accepted_at,
        lease_until=lease_until,
        service_tier=request.submit.service_tier,
    )


def record_of(request: OpenRequest, ending: Finished | None, now: datetime) -> UsageRecord:
    """What is owed: what the engine ran or, if it died, what it delivered."""
    submit = request.submit
    usage = _delivered(request) if ending is None else ending.usage
    price, reason = request.price, reason_of(request, ending)
    digest = b"" if ending is None else ending.output_digest
    return UsageRecord(
        request_id=submit.request_id,
        tenant_id=request.principal.tenant_id,
        project_id=request.principal.project_id,
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
        finished_at=now,
        queue_ms=0.0 if ending is None else ending.queue_ms,
        price_id=None if price is None else price.id,
        currency=None if price is None else price.currency,
        # Nobody pays for what the platform broke off.
        cost_pico=0 if price is None or reason == "error" else _cost_pico(price, usage),
        billable=reason != "error",
        service_tier=submit.service_tier,
        output_digest=digest.hex() or None,
    )


def is_owed(record: UsageRecord) -> bool:
    """False for a request whose client left before anything ran."""
    return record.finish_reason != "abort" or record.prompt_tokens + record.completion_tokens > 0


def reason_of(request: OpenRequest, ending: Finished | None) -> FinishReason:
    """Why it ended; None for an engine that died."""
    return "error" if ending is None or request.failed else ending.reason


def ended(request: OpenRequest) -> EndedRequest:
    """What is kept of it."""
    finished = request.finished
    return EndedRequest(
        submit=replace(request.submit, prompt=()),
        model=request.target.name,
        reason=reason_of(request, finished),
        queue_ms=0.0 if finished is None else finished.queue_ms,
        waited_ms={} if finished is None else finished.waited_ms,
    )


def _max_cost_pico(request: OpenRequest) -> int:
    price = request.price
    if price is None:
        return 0
    return max_cost_pico(price.tokens, len(request.submit.prompt), request.max_output_tokens)


def _cost_pico(price: Price, usage: Usage) -> int:
    return cost_pico(
        price.tokens, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
    )


def _delivered(request: OpenRequest) -> Usage:
    prompt_tokens = len(request.submit.prompt) if request.num_delivered else 0
    return Usage(
        prompt_tokens=prompt_tokens, cached_tokens=0, completion_tokens=request.num_delivered
    )
