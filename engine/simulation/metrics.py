"""What a run is judged by: fairness between tenants, latency, throughput, adapters, the planner."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loraplex.engine.cost_features import Floats
from loraplex.engine.simulation.errors import SimulationError
from loraplex.engine.simulation.fluid import fluid_waits_s
from loraplex.engine.simulation.records import Record, Run

_WINDOW_S = 60.0
_WARM_UP_S = 30.0
_NUM_WINDOWS = 20


@dataclass(frozen=True, slots=True)
class Metrics:
    """One run in numbers; `docs/scheduling.md` has the formulas."""

    max_diff: float
    """Windowed difference of service between tenants, as VTC's authors define it; the next two are
    its mean and variance."""
    avg_diff: float
    var: float
    tokens_per_s: float
    """Prompt and output, until the last request has ended."""
    p50_ttft_s: float
    p99_ttft_s: float
    p99_tpot_s: float
    jain_satisfied: float
    """Jain's index of min(1, served ÷ asked), mean over windows."""
    jain_weighted: float
    """Jain's index of service, mean over windows."""
    goodput_rps: float
    """Requests a second whose TTFT and TPOT are within their targets."""
    max_wait_over_fair: float
    """Longest wait ÷ (wait under fluid fair sharing + the longest request alone)."""
    max_skips: int
    """Requests that arrived later and started earlier than one, at most."""
    interruption_share: float
    """Part of decoding requests' time in which they waited for others' prompts and loads."""
    load_interruption_share: float
    """The part of it that is for loads."""
    adapter_hit_rate: float
    """Requests on adapters that started no load; 1 without adapters."""
    load_bytes_critical: int
    """Bytes of loads that requests waited for."""
    prefetch_precision: float
    """Prefetches that a request used; 1 without any."""
    prefetch_recall: float
    """Of all loads that a request needed, those that were begun before."""
    prefetch_wasted_bytes: int
    """Bytes of those that none used before they were evicted."""
    planner_us_p50: float
    """Wall time of planning and committing a step, of this machine."""
    planner_us_p99: float
    prefix_hit_rate: float
    """Part of all prompt tokens that was found in the cache."""
    bound_used: float | None
    """Part of the policy's bound on unfairness that was used; none without a bound."""


@dataclass(frozen=True, slots=True)
class LatencyTargets:
    """What makes a request count as good."""

    ttft_s: float = 10.0
    tpot_s: float = 0.1


def measure(run: Run, targets: LatencyTargets | None = None) -> Metrics:
    """Compute all metrics of a run.

    Raises SimulationError if no request got a token.
    """
    targets = targets or LatencyTargets()
    records = [record for record in run.records if record.first_token_s is not None]
    if not records:
        raise SimulationError("no request got a token, so that there is nothing to measure")
    ttft = np.array([record.ttft_s for record in records], float)
    tpot = np.array([r.tpot_s for r in records if r.tpot_s is not None], float)
    service = WindowedService(records, run.last_arrival_s)
    differences = service.differences()
    satisfied, weighted = service.jain()
    on_adapters = sum(record.adapter is not None for record in records)
    good = sum(_is_good(record, targets) for record in records)
    prompt_tokens = sum(record.prompt_tokens for record in records)
    tokens = prompt_tokens + sum(record.output_tokens for record in records)
    return Metrics(
        max_diff=float(differences.max()),
        avg_diff=float(differences.mean()),
        var=float(differences.var()),
        tokens_per_s=tokens / run.duration_s,
        p50_ttft_s=_percentile(ttft, 50),
        p99_ttft_s=_percentile(ttft, 99),
        p99_tpot_s=_percentile(tpot, 99),
        jain_satisfied=satisfied,
        jain_weighted=weighted,
        goodput_rps=good / run.duration_s,
        max_wait_over_fair=max_wait_over_fair(run),
        max_skips=max_skips(run.records),
        interruption_share=run.interrupted_ms / run.decode_ms if run.decode_ms else 0.0,
        load_interruption_share=run.load_stall_ms / run.decode_ms if run.decode_ms else 0.0,
        adapter_hit_rate=1.0 - run.num_loads / on_adapters if on_adapters else 1.0,
        load_bytes_critical=run.critical_bytes,
        prefetch_precision=_ratio(run.prefetched.num_claimed, run.prefetched.num_started),
        prefetch_recall=_ratio(
            run.prefetched.num_claimed, run.prefetched.num_claimed + run.num_loads
        ),
        prefetch_wasted_bytes=run.prefetched.wasted_bytes,
        planner_us_p50=_percentile(np.array(run.planner_us), 50),
        planner_us_p99=_percentile(np.array(run.planner_us), 99),
        prefix_hit_rate=sum(record.cached_tokens for record in records) / prompt_tokens,
        bound_used=run.bound_used,
    )


class WindowedService:
    """Service of each tenant over windows of a minute, as in VTC (https://arxiv.org/abs/2401.00588,
    and its artifact's plots): a request's prompt tokens and twice its output tokens, spread evenly
    from its first token to its last.
    """

    def __init__(self, records: Sequence[Record], until_s: float) -> None:
        """`until_s` is when the last request arrived."""
        tenants = sorted({record.tenant for record in records})
        number = {tenant: i for i, tenant in enumerate(tenants)}
        self.tenants = tuple(tenants)
        self._tenant = np.array([number[record.tenant] for record in records], int)
        self._start = np.array([record.first_token_s for record in records], float)
        self._end = np.array([record.end_s for record in records], float)
        self._arrival = np.array([record.arrival_s for record in records], float)
        self._service = np.array([record.service for record in records], float)
        step = max(until_s - _WARM_UP_S, 1.0) / _NUM_WINDOWS
        self.middles = _WARM_UP_S + step * np.arange(1, _NUM_WINDOWS)
        """Of the windows, in seconds."""

    def served(self, low: float, high: float) -> Floats:
        """Service per second of each tenant within [low, high]; shape (tenants,)."""
        length = self._end - self._start
        inside = np.minimum(high, self._end) - np.maximum(low, self._start)
        share = np.clip(inside, 0.0, None) / np.maximum(length, 1e-9)
        # What takes no time is served in a moment.
        share = np.where(length <= 1e-5, (self._start >= low) & (self._start <= high), share)
        return self._by_tenant(share) / (high - low)

    def asked(self, low: float, high: float) -> Floats:
        """Service per second that each tenant's arrivals within [low, high] ask for."""
        return self._by_tenant((self._arrival >= low) & (self._arrival <= high)) / (high - low)

    def differences(self) -> Floats:
        """Of each window: sum over tenants of how far each is from the best served, but no further
        than from what it asked for."""
        sums = []
        for middle in self.middles:
            served, asked = self._window(middle)
            sums.append(float(np.minimum(served.max() - served, np.abs(asked - served)).sum()))
        return np.array(sums)

    def jain(self) -> tuple[float, float]:
        """Mean over windows of Jain's index, of satisfied demand and of service, over tenants that
        ask for anything in them."""
        satisfied, weighted = [], []
        for middle in self.middles:
            served, asked = self._window(middle)
            asks = asked > 0
            if asks.sum() > 1:
                satisfied.append(jain_index(np.minimum(served[asks] / asked[asks], 1.0)))
                weighted.append(jain_index(served[asks]))
        return _mean(satisfied), _mean(weighted)

    def _window(self, middle: float) -> tuple[Floats, Floats]:
        low, high = middle - _WINDOW_S / 2, middle + _WINDOW_S / 2
        return self.served(low, high), self.asked(low, high)

    def _by_tenant(self, share: np.ndarray) -> Floats:
        return np.bincount(self._tenant, share * self._service, len(self.tenants)).astype(float)


def jain_index(values: Floats) -> float:
    """(Σx)² ÷ (n Σx²): 1 if all are equal, 1/n if one has all; 1 for all zeros."""
    squares = float((values**2).sum())
    return float(values.sum() ** 2 / (len(values) * squares)) if squares > 0 else 1.0


def max_skips(records: Sequence[Record]) -> int:
    """How many requests that arrived later started before one that was waiting, at most."""
    started = sorted((r.arrival_s, r.started_s) for r in records if r.started_s is not None)
    starts = np.array([start for _, start in started])
    worst = 0
    for i, start in enumerate(starts):
        # Nobody who arrived after this one's start can have overtaken it.
        worst = max(worst, int((starts[i + 1 :] < start).sum()))
    return worst


def max_wait_over_fair(run: Run) -> float:
    """The longest wait for a first step, over what fluid fair sharing of the machine would have
    had the request wait, plus the longest request's own time on the machine."""
    records = [record for record in run.records if record.started_s is not None]
    longest_s = max(record.machine_ms for record in records) / 1e3
    fair = fluid_waits_s([(r.arrival_s, r.tenant, r.machine_ms / 1e3) for r in records])
    return max(
        float((r.started_s or 0.0) - r.arrival_s) / (fair_s + longest_s)
        for r, fair_s in zip(records, fair, strict=True)
    )


def _is_good(record: Record, targets: LatencyTargets) -> bool:
    ttft, tpot = record.ttft_s, record.tpot_s
    return ttft is not None and ttft <= targets.ttft_s and (tpot or 0.0) <= targets.tpot_s


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _percentile(values: Floats, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else 0.0


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 1.0
