"""Hints: a tenant says that it will use an adapter soon. No HTTP here.

A hint is resolved as a request is, and like one it is no matter of the audit log: it changes
nothing that is kept, costs nothing and promises nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from loraplex.adapters.registry.resolution import ResolvedModel
from loraplex.engine.errors import EngineUnavailable
from loraplex.engine.residency_protocol import Tier, Warm
from loraplex.platform.errors import ModelNotAllowed, TooManyHints
from loraplex.platform.services import Services


@dataclass(frozen=True, slots=True)
class Hint:
    """What is asked for."""

    tenant_id: str
    model: str
    """As a request would name it."""
    sticky: str
    """Decides whether an alias means its canary, as for a request."""
    ttl_s: float
    may_call: Callable[[str], bool]
    """Whether whoever asks may call the model of this resolved name."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """A hint that was given."""

    target: ResolvedModel
    digest: str
    tier: Tier | None
    """Where the adapter is now; None if the worker does not answer in time."""
    expires_at: datetime


async def warm(hint: Hint, services: Services) -> Warmed:
    """Tell the worker that the adapter will be used. Said again, the later end holds.

    Raises EngineUnavailable, ModelNotFound, ModelNotAllowed, TooManyHints.
    """
    engine = services.resources.engine
    # Noted as a request is, so that whoever deletes the version tells the worker after this.
    with services.adapter_uses.use() as use:
        target, digest = await _resolve(hint, services)
        use.runs_on(target.name)
        ttl_s = _granted_s(hint, digest, services)
        expires_at = services.resources.now() + timedelta(seconds=ttl_s)
        engine.warm(Warm(hint.tenant_id, digest, ttl_s))
    tier = await engine.tier(hint.tenant_id, digest)
    return Warmed(target, digest, tier, expires_at)


def _granted_s(hint: Hint, digest: str, services: Services) -> float:
    open_s = services.resources.engine.hints_of(hint.tenant_id)
    max_hints = services.resources.settings.max_tenant_hints
    if digest not in open_s and len(open_s) >= max_hints:
        raise TooManyHints(max_hints, min(open_s.values()))
    return max(hint.ttl_s, open_s.get(digest, 0.0))


async def _resolve(hint: Hint, services: Services) -> tuple[ResolvedModel, str]:
    engine = services.resources.engine
    if not engine.connected:
        raise EngineUnavailable("No worker is connected; try again in a moment.")
    edition = await services.catalogue.current()
    meaning = await edition.meaning(hint.tenant_id, hint.model, engine.model.name)
    target = meaning.chosen(hint.tenant_id, hint.sticky)
    assert target.digest is not None, "a name with a tenant in it is an adapter's"
    if not hint.may_call(target.name):
        raise ModelNotAllowed(target.name)
    return target, target.digest
