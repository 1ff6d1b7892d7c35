"""What a run of `loraplex bench routes` says, as ratios."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loraplex.platform.bench.routes.plan import (
    FORCED,
    RESIDENT,
    RatioSamples,
    RouteName,
    RoutesResult,
    Samples,
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one number over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Row:
    """One route at one ratio; `…_over_resident` are beside requests whose adapter was there.

    Ratios are medians of those within each round, so that slow moments of the machine cancel out.
    """

    load_over_prefill: float
    """As it was set, by the prompts just before."""
    measured_load_over_prefill: float
    """The same copy ÷ the median of prompts on resident adapters in these rounds."""
    route: RouteName
    bandwidth_gbps: float
    """GB/s (10⁹ bytes) to which the copy was throttled."""
    ttft_ms: Spread
    ttft_over_resident: float
    beside_ttft_ms: Spread | None
    """Of a request that comes while others decode; None, as the next four, where none did."""
    beside_ttft_over_resident: float | None
    tpot_ms: Spread | None
    """Mean gap between tokens of those that decode beside it."""
    tpot_over_resident: float | None
    tpot_p99_over_resident: float | None
    """Of the gaps of all rounds together."""
    tokens_equal: float
    """Share of first tokens that are those of an adapter that was there."""
    taken: dict[str, int]
    num_warm_up: int


def rows(result: RoutesResult) -> list[Row]:
    """All routes at all ratios, in order."""
    return [
        _row(at, route, samples) for at in result.ratios for route, samples in at.by_route.items()
    ]


def fastest_forced(at: RatioSamples) -> RouteName:
    """Of the routes of one request, the one by which first tokens came first at this ratio."""
    return min(FORCED, key=lambda route: statistics.median(at.by_route[route].ttft_ms))


def regret(at: RatioSamples) -> float:
    """TTFT of the chosen route ÷ that of the forced route that was the fastest there − 1."""
    return _over(at.by_route["chosen"].ttft_ms, at.by_route[fastest_forced(at)].ttft_ms) - 1


def choice_regret(result: RoutesResult) -> float:
    """Mean of it over all ratios."""
    return statistics.fmean(map(regret, result.ratios))


def worst_chosen_over_wait(result: RoutesResult) -> float:
    """Most that a choice took, beside waiting, over all ratios."""
    return max(
        _over(at.by_route["chosen"].ttft_ms, at.by_route["wait"].ttft_ms) for at in result.ratios
    )


def scale_over_few(result: RoutesResult) -> float | None:
    """Throughput with many registered adapters ÷ that with 5; None where it was not measured."""
    scale = result.scale
    return None if scale is None else _over(scale.many, scale.few)


def bandwidth_gbps(result: RoutesResult) -> float:
    """GB/s (10⁹ bytes) at which a copy takes as long as a prompt."""
    return result.adapter_bytes / (result.prefill_ms / 1e3) / 1e9


def _row(at: RatioSamples, route: RouteName, samples: Samples) -> Row:
    resident = at.by_route[RESIDENT]
    set_ms = at.ratio * at.prefill_ms
    means, of_resident = _mean_gaps(samples), _mean_gaps(resident)
    beside = [beside.ttft_ms for beside in samples.beside]
    pairs = zip(samples.token_ids, resident.token_ids, strict=True)
    return Row(
        load_over_prefill=at.ratio,
        measured_load_over_prefill=set_ms / statistics.median(resident.ttft_ms),
        route=route,
        bandwidth_gbps=at.copy_bytes_per_s / 1e9,
        ttft_ms=Spread.of(samples.ttft_ms),
        ttft_over_resident=_over(samples.ttft_ms, resident.ttft_ms),
        beside_ttft_ms=Spread.of(beside) if beside else None,
        beside_ttft_over_resident=(
            _over(beside, [each.ttft_ms for each in resident.beside]) if beside else None
        ),
        tpot_ms=Spread.of(means) if means else None,
        tpot_over_resident=_over(means, of_resident) if means else None,
        tpot_p99_over_resident=_p99(samples) / _p99(resident) if means else None,
        tokens_equal=statistics.fmean(one == other for one, other in pairs),
        taken=dict(samples.taken),
        num_warm_up=samples.num_warm_up,
    )


def _over(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _mean_gaps(samples: Samples) -> list[float]:
    return [statistics.fmean(beside.gaps_ms) for beside in samples.beside]


def _p99(samples: Samples) -> float:
    gaps = [gap for beside in samples.beside for gap in beside.gaps_ms]
    return float(np.percentile(gaps, 99))
