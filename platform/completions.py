"""The walk of a completion through the platform. No HTTP here."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from loraplex.adapters.profile import Profile
from loraplex.adapters.registry.resolution import ResolvedModel
from loraplex.engine.errors import (
    EngineError,
    EngineNotReached,
    EngineOverloaded,
    EngineUnavailable,
    RequestRefused,
)
from loraplex.engine.protocol import Finished, Sampling, ServiceTier, Submit, Tokens
from loraplex.platform.adapter_uses import AdapterUse
from loraplex.platform.catalogue import Edition
from loraplex.platform.errors import (
    ContextLengthExceeded,
    EngineStopped,
    KeyMissing,
    ModelNotAllowed,
    PriceMissing,
)
from loraplex.platform.invocation import adapter_start
from loraplex.platform.open_request import OpenRequest
from loraplex.platform.prompts import Prompt
from loraplex.platform.sampling import SamplingOptions
from loraplex.platform.services import Services
from loraplex.tenants import api_keys
from loraplex.tenants.api_keys import Principal
from loraplex.tenants.errors import KeyRevoked
from loraplex.tenants.key_text import parse
from loraplex.tenants.prices import Price
from loraplex.tenants.reservations import Hold
from loraplex.tenants.scoped_limits import ScopedLimit
from loraplex.tenants.service_tiers import served_tier
from loraplex.tenants.stored_keys import opened

MILLISECOND = timedelta(milliseconds=1)
StreamUsage = Literal["none", "last", "all"]


@dataclass(frozen=True, slots=True)
class Deadline:
    """When the first token must come, or the request be refused."""

    ms: float | None
    """After the request's arrival; None for none, whatever the tenant's default is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """What a client asks for, on whichever route; checked as far as it can be without a model."""

    model: str
    prompt: Prompt
    prompt_field: str
    """How the request named it, for messages; so below."""
    max_tokens: int | None
    """None takes the platform's default, at most what the context leaves."""
    max_tokens_field: str
    sampling: SamplingOptions
    stream: bool
    stream_usage: StreamUsage
    """Which events of a stream tell usage: an own one at the end, or all."""
    service_tier: ServiceTier
    program: str = ""
    """What it is a part of, in the tenant's own words."""
    ttft_deadline: Deadline | None = None
    """None takes the tenant's."""
    sticky: str | None = None
    """Requests of an alias with the same text run on the same version; None takes the request's
    id."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request as it arrives."""

    request_id: str
    key: str | None
    read: Callable[[], Awaitable[CompletionRequest]]
    """Reads and checks the body; called only for a caller who is known."""
    address: str | None = None
    """That it comes from, as far as the server knows."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """First item of `complete`: the request runs from here on."""

    request: CompletionRequest
    target: ResolvedModel
    hold: Hold
    submit: Submit


@dataclass(frozen=True, slots=True)
class _Caller:
    """Who calls, by which edition of the catalogue."""

    principal: Principal
    edition: Edition


async def complete(
    call: Call, services: Services
) -> AsyncGenerator[Admitted | Tokens | Finished, None]:
    """Serve a completion: one Admitted, Tokens as they come, then Finished once it is settled,
    or while that goes on by itself, where the ledger cannot be written for long.

    Close the generator, or cancel what iterates over it, and the engine stops; what ran until then
    is charged. Raises errors of tenants, adapters, engine and platform, all told by
    `error_replies.py`.
    """
    accepted_at = services.now()
    caller = await _caller(call, services)
    asked = await call.read()
    with services.adapter_uses.use() as use:
        # Again, since the body may have taken long, and whoever deletes a version waits for those
        # requests alone whose use was noted before (`adapters/registry/gateways.py`).
        caller = await _caller(call, services, caller)
        request = await _admit(call, asked, accepted_at, caller, use, services)
        try:
            reserving = services.open_requests.reserve(request)
            hold = await services.refusals.noted(
                reserving, request.principal.tenant_id, call.request_id, accepted_at
            )
            yield Admitted(asked, request.target, hold, request.submit)
            with _dispatched(request, services):
                async with aclosing(services.resources.engine.generate(request.submit)) as events:
                    async for event in events:
                        request.note(event, services.now)
                        if isinstance(event, Tokens):
                            yield event
        finally:
            await services.open_requests.close(request)
    assert request.finished is not None
    yield request.finished


async def authenticate(key: str | None, address: str | None, services: Services) -> Principal:
    """Whom the key stands for, which came from an address. Raises KeyMissing, KeyRefused and its
    subclasses."""
    principal = await _principal(await services.catalogue.current(), key, address, services)
    services.last_used.note(principal.key_id, services.now())
    return principal


async def _principal(
    edition: Edition, key: str | None, address: str | None, services: Services
) -> Principal:
    """As `authenticate`, by what an edition of the catalogue says."""
    if key is None:
        raise KeyMissing
    stored = await edition.key(parse(api_keys.PREFIX, key))
    principal = opened(stored, key, services.resources.pepper, services.now())
    principal.check_address(address)
    return principal


async def _caller(call: Call, services: Services, before: _Caller | None = None) -> _Caller:
    """Who calls, and may; what was found before is that if nothing has changed since."""
    edition = await services.catalogue.current()
    if before is not None and before.edition is edition:
        return before
    principal = await _principal(edition, call.key, call.address, services)
    principal.check("inference")
    services.last_used.note(principal.key_id, services.now())
    return _Caller(principal, edition)


async def _admit(
    call: Call,
    asked: CompletionRequest,
    accepted_at: datetime,
    caller: _Caller,
    use: AdapterUse,
    services: Services,
) -> OpenRequest:
    """Resolve the model, encode the prompt: all that can be wrong with a request but limits."""
    principal, edition = caller.principal, caller.edition
    sticky = call.request_id if asked.sticky is None else asked.sticky
    target = await _resolve(edition, principal, asked.model, sticky, services)
    use.runs_on(None if target.digest is None else target.name)
    adapter = await services.profiles.of(principal.tenant_id, target)
    profile = Profile() if adapter is None else adapter.profile
    prompt = await services.prompts.encode(asked.prompt, adapter)
    sampling = _sampling(asked, len(prompt), profile, services)
    # An activated adapter that is not invoked never acts: the base model computes the request,
    # which stays one of the adapter's version to whoever pays for it.
    start = adapter_start(prompt, profile.invocation_tokens)
    left_ms, spent_ms = _deadline(asked, principal, services.now() - accepted_at)
    submit = Submit(
        request_id=call.request_id,
        tenant=principal.tenant_id,
        adapter=None if start is None else target.digest,
        adapter_start=start or 0,
        prompt=prompt,
        sampling=sampling,
        weight=principal.weight,
        weight_version=principal.weight_version,
        accepted_at_s=accepted_at.timestamp(),
        service_tier=served_tier(asked.service_tier, principal.service_tiers),
        program=asked.program,
        ttft_deadline_ms=left_ms,
        ttft_spent_ms=spent_ms,
    )
    price = await edition.price(accepted_at)
    return OpenRequest(
        principal=principal,
        requested_model=asked.model,
        target=target,
        submit=submit,
        accepted_at=accepted_at,
        price=price,
        limits=_payable(await edition.limits(principal, target.adapter, accepted_at), price),
        limits_now=partial(_limits, principal, target.adapter, accepted_at, price, services),
        catalogue_version=edition.version,
        use=use,
    )


async def _limits(
    before: Principal,
    adapter: str | None,
    at: datetime,
    price: Price | None,
    services: Services,
) -> tuple[ScopedLimit, ...]:
    """What a request of the key is limited by now. Raises KeyRefused, PriceMissing."""
    edition = await services.catalogue.current()
    key = await edition.key(before.key_id)
    if key is None:
        raise KeyRevoked(f"The API key {before.key_id} is gone.")
    if key.ended_by is not None:
        raise key.ended_by
    return _payable(await edition.limits(key.principal, adapter, at), price)


def _payable(limits: tuple[ScopedLimit, ...], price: Price | None) -> tuple[ScopedLimit, ...]:
    """The limits, if all of them can hold. Raises PriceMissing."""
    for limit in limits:
        is_of_money = limit.dimension == "cost_micros_per_month" and limit.mode == "enforce"
        if is_of_money and price is None:
            raise PriceMissing(limit)
    return limits


async def _resolve(
    edition: Edition, principal: Principal, model: str, sticky: str, services: Services
) -> ResolvedModel:
    """What the request runs on, fixed from here on."""
    engine = services.resources.engine
    if not engine.connected:
        raise EngineUnavailable("No worker is connected; try again in a moment.")
    meaning = await edition.meaning(principal.tenant_id, model, engine.model.name)
    target = meaning.chosen(principal.tenant_id, sticky)
    if not principal.may_call(target.name):
        raise ModelNotAllowed(target.name)
    return target


@contextmanager
def _dispatched(request: OpenRequest, services: Services) -> Iterator[None]:
    """While the request is in the engine. Notes whose fault its end was; raises EngineStopped if
    nobody who could asked for it."""
    request.use.check()
    services.open_requests.dispatch(request)
    try:
        yield
    except (RequestRefused, EngineOverloaded, EngineNotReached):
        request.dispatched = False
        raise
    except EngineError as error:
        request.failed = getattr(error, "code", None) != "slow_client"
        raise
    if request.finished is None or request.finished.reason == "abort":
        request.use.check()
        request.failed = True
        raise EngineStopped


def _deadline(
    asked: CompletionRequest, principal: Principal, elapsed: timedelta
) -> tuple[float | None, float]:
    """What is left until the first token must come, and what is gone of that time, in ms."""
    deadline = asked.ttft_deadline or Deadline(principal.limits.ttft_deadline_ms)
    if deadline.ms is None:
        return None, 0.0
    spent_ms = min(max(0.0, elapsed / MILLISECOND), deadline.ms)
    return deadline.ms - spent_ms, spent_ms


def _sampling(
    asked: CompletionRequest, num_prompt_tokens: int, profile: Profile, services: Services
) -> Sampling:
    """The sampling of a request, with an explicit cap and seed; the adapter says what it does not.

    Raises InvalidRequest, ContextLengthExceeded.
    """
    model, settings = services.resources.engine.model, services.resources.settings
    vocab_size = profile.vocab_size or model.vocab_size
    asked.sampling.refuse_unknown(model.name, vocab_size, settings.max_choices)
    context = model.max_model_len
    left = context - num_prompt_tokens
    if left < 1:
        raise ContextLengthExceeded(
            f"The prompt has {num_prompt_tokens} tokens, but the model's context is {context} "
            "tokens and the output needs at least one; shorten the prompt.",
            asked.prompt_field,
        )
    max_tokens = asked.max_tokens or min(settings.default_max_tokens, left)
    if max_tokens > left:
        raise ContextLengthExceeded(
            f"The prompt has {num_prompt_tokens} tokens and {asked.max_tokens_field} is "
            f"{max_tokens}, together {num_prompt_tokens + max_tokens}, but the model's context is "
            f"{context} tokens; set {asked.max_tokens_field} to at most {left}.",
            asked.max_tokens_field,
        )
    options = asked.sampling.completed_by(profile)
    return options.to_sampling(max_tokens, int.from_bytes(services.resources.entropy(8)))
