"""Requests that nobody has recorded: generated ones, and changes to recorded ones. Seeded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loraplex.engine.simulation.errors import SimulationError
from loraplex.engine.simulation.traces import TraceRequest

Requests = tuple[TraceRequest, ...]

_MOST_REQUESTS = 2_000_000


@dataclass(frozen=True, slots=True)
class Generated:
    """What to generate."""

    num_tenants: int = 16
    rate_per_s: float = 2.0
    """Of all tenants together, on average."""
    duration_s: float = 300.0
    tenant_zipf: float = 1.0
    """Popularity of tenants: the i-th has a share in proportion to i^-s."""
    burstiness_cv: float = 1.0
    """Coefficient of variation of the gaps between one tenant's requests; 1 is Poisson."""
    active_share: float = 1.0
    """Part of the time in which a tenant sends anything, in periods of a minute."""
    mean_prompt_tokens: float = 300.0
    mean_output_tokens: float = 150.0


@dataclass(frozen=True, slots=True)
class AdapterMix:
    """Which adapters the requests of a tenant use; no public trace tells."""

    per_tenant: int
    """Adapters of each tenant; 0 leaves all requests on the base model."""
    zipf: float = 0.9
    """Popularity inside a tenant: the i-th in proportion to i^-s."""
    ranks: tuple[int, ...] = (8, 16, 32, 64)
    """Each adapter has one of them, drawn evenly."""


def generate(spec: Generated, seed: int) -> Requests:
    """Requests of tenants `t0`, `t1`, …, sorted by arrival. Gaps are gamma, lengths log-normal.

    Raises SimulationError if they are too many to be held.
    """
    expected = spec.rate_per_s * spec.duration_s
    if expected > _MOST_REQUESTS:
        raise SimulationError(
            f"{spec.rate_per_s:g} requests a second for {spec.duration_s:g} s are {expected:,.0f}; "
            f"at most {_MOST_REQUESTS:,} are generated"
        )
    rng = np.random.default_rng(seed)
    shares = _zipf(spec.num_tenants, spec.tenant_zipf)
    requests = []
    for tenant, share in enumerate(shares):
        for arrival_s in _arrivals(spec, spec.rate_per_s * share, rng):
            prompt, output = (
                max(1, int(mean * rng.lognormal(-0.5, 1.0)))
                for mean in (spec.mean_prompt_tokens, spec.mean_output_tokens)
            )
            requests.append(TraceRequest(arrival_s, f"t{tenant}", prompt, output))
    return _sorted(requests)


def with_adapters(requests: Requests, mix: AdapterMix, seed: int) -> Requests:
    """Give each request one of its tenant's adapters."""
    if mix.per_tenant == 0:
        return requests
    rng = np.random.default_rng((seed, 1))
    popularity = _zipf(mix.per_tenant, mix.zipf)
    tenants = sorted({request.tenant for request in requests})
    ranks = {t: rng.choice(mix.ranks, mix.per_tenant).tolist() for t in tenants}
    picks = rng.choice(mix.per_tenant, len(requests), p=popularity).tolist()
    return tuple(
        replace(request, adapter=f"{request.tenant}/{pick}", rank=ranks[request.tenant][pick])
        for request, pick in zip(requests, picks, strict=True)
    )


def with_burst(requests: Requests, factor: int, seed: int) -> Requests:
    """Let one tenant send `factor` times as much: the one in the middle of the field by work."""
    if factor <= 1:
        return requests
    rng = np.random.default_rng((seed, 2))
    burster = bursting_tenant(requests)
    extra = [
        replace(request, arrival_s=request.arrival_s + float(rng.uniform(0, 5)))
        for request in requests
        if request.tenant == burster
        for _ in range(factor - 1)
    ]
    return _sorted([*requests, *extra])


def bursting_tenant(requests: Requests) -> str:
    """The tenant that sends about a tenant's fair part of all tokens."""
    work: dict[str, int] = {}
    for r in requests:
        work[r.tenant] = work.get(r.tenant, 0) + r.prompt_tokens + 2 * r.output_tokens
    fair = sum(work.values()) / len(work)
    return min(work, key=lambda tenant: (abs(work[tenant] - fair), tenant))


def with_cancellations(requests: Requests, share: float, seed: int) -> Requests:
    """Let the clients of a share of requests leave, evenly within 30 s of their arrival."""
    rng = np.random.default_rng((seed, 3))
    leaves = rng.random(len(requests)) < share
    after_s = rng.uniform(0, 30, len(requests)).tolist()
    return tuple(
        replace(request, cancelled_after_s=at) if goes else request
        for request, goes, at in zip(requests, leaves.tolist(), after_s, strict=True)
    )


def scaled(requests: Requests, speed: float, until_s: float | None = None) -> Requests:
    """The requests that arrive before `until_s`, arriving `speed` times as fast."""
    kept = requests if until_s is None else [r for r in requests if r.arrival_s < until_s]
    if not kept:
        when = "at all" if until_s is None else f"within the first {until_s:g} s"
        raise SimulationError(f"no request arrives {when}")
    return tuple(replace(request, arrival_s=request.arrival_s / speed) for request in kept)


def _arrivals(spec: Generated, rate: float, rng: np.random.Generator) -> list[float]:
    shape = 1.0 / spec.burstiness_cv**2
    gap_s = spec.active_share / rate
    period_s = 60.0
    num_periods = int(spec.duration_s / period_s) + 1
    active = np.flatnonzero(rng.random(num_periods) < spec.active_share)
    arrivals: list[float] = []
    clock_s = float(rng.gamma(shape, gap_s / shape))
    while clock_s < len(active) * period_s:
        period = int(active[int(clock_s / period_s)])
        at = period * period_s + clock_s % period_s
        if at < spec.duration_s:
            arrivals.append(at)
        clock_s += float(rng.gamma(shape, gap_s / shape))
    return arrivals


def _zipf(count: int, exponent: float) -> np.ndarray:
    weights = np.arange(1, count + 1, dtype=float) ** -exponent
    return np.asarray(weights / weights.sum())


def _sorted(requests: Sequence[TraceRequest]) -> Requests:
    return tuple(sorted(requests, key=lambda request: request.arrival_s))
