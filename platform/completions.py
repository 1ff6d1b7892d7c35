"""The walk of a completion through the platform. No HTTP here."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from loraplex.adapters.profile import Profile
from loraplex.adapters.registry.resolution import ResolvedModel, resolve
from loraplex.engine.errors import (
    EngineError,
    EngineNotReached,
    EngineOverloaded,
    EngineUnavailable,
    RequestRefused,
)
from loraplex.engine.protocol import Finished, Sampling, ServiceTier, Submit, Tokens
from loraplex.platform.adapter_uses import AdapterUse
from loraplex.platform.errors import ContextLengthExceeded, EngineStopped, KeyMissing
from loraplex.platform.invocation import adapter_start
from loraplex.platform.open_requests import OpenRequest
from loraplex.platform.prompts import Prompt
from loraplex.platform.sampling import SamplingOptions
from loraplex.platform.services import Services
from loraplex.tenants import api_keys
from loraplex.tenants.api_keys import Principal
from loraplex.tenants.prices import Price, current_price
from loraplex.tenants.quotas import Hold

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


@dataclass(frozen=True, slots=True)
class Admitted:
    """First item of `complete`: the request runs from here on."""

    request: CompletionRequest
    target: ResolvedModel
    hold: Hold
    submit: Submit


async def complete(
    call: Call, services: Services
) -> AsyncGenerator[Admitted | Tokens | Finished, None]:
    """Serve a completion: one Admitted, Tokens as they come, then Finished once it is settled,
    or while that goes on by itself, where the ledger cannot be written for long.

    Close the generator, or cancel what iterates over it, and the engine stops; what ran until then
    is charged. Raises errors of tenants, adapters, engine and platform, all told by `errors.py`.
    """
    accepted_at = services.now()
    principal = await authenticate(call.key, services)
    asked = await call.read()
    with services.adapter_uses.use() as use:
        request = await _admit(call, principal, asked, accepted_at, use, services)
        try:
            hold = await services.open_requests.reserve(request)
            yield Admitted(asked, request.target, hold, request.submit)
            async with aclosing(_generate(request, services)) as tokens:
                async for event in tokens:
                    yield event
        finally:
            await services.open_requests.close(request)
    assert request.finished is not None
    yield request.finished


async def authenticate(key: str | None, services: Services) -> Principal:
    """Whom the key stands for. Raises KeyMissing, KeyRefused and its subclasses."""
    if key is None:
        raise KeyMissing
    now = services.now()
    async with services.resources.database.reader() as session:
        principal = await api_keys.verify(session, key, services.resources.pepper, now)
    services.last_used.note(principal.key_id, now)
    return principal


async def _admit(
    call: Call,
    principal: Principal,
    asked: CompletionRequest,
    accepted_at: datetime,
    use: AdapterUse,
    services: Services,
) -> OpenRequest:
    """Resolve the model, encode the prompt: all that can be wrong with a request but limits."""
    sticky = call.request_id if asked.sticky is None else asked.sticky
    target, price = await _resolve(principal, asked.model, sticky, accepted_at, services)
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
        service_tier=asked.service_tier,
        program=asked.program,
        ttft_deadline_ms=left_ms,
        ttft_spent_ms=spent_ms,
    )
    return OpenRequest(
        principal=principal,
        requested_model=asked.model,
        target=target,
        submit=submit,
        accepted_at=accepted_at,
        price=price,
        use=use,
    )


async def _resolve(
    principal: Principal, model: str, sticky: str, accepted_at: datetime, services: Services
) -> tuple[ResolvedModel, Price | None]:
    """What the request runs on and what it costs, both fixed from here on."""
    engine = services.resources.engine
    if not engine.connected:
        raise EngineUnavailable("No worker is connected; try again in a moment.")
    async with services.resources.database.reader() as session:
        target = await resolve(session, principal.tenant_id, model, engine.model.name, sticky)
        return target, await current_price(session, accepted_at)


async def _generate(request: OpenRequest, services: Services) -> AsyncGenerator[Tokens, None]:
    """Run the request in the engine, and note in it what it will be charged for."""
    request.use.check()
    if request.settling is not None:
        raise EngineStopped  # broken off since it was admitted: nobody would count what ran now
    request.dispatched = True
    try:
        async with aclosing(services.resources.engine.generate(request.submit)) as events:
            async for event in events:
                request.note(event)
                if isinstance(event, Tokens):
                    if request.first_token_at is None:
                        request.first_token_at = services.now()
                    yield event
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
