"""The ratios of a run of `loraplex bench engine`."""

import statistics
from collections.abc import Sequence

from loraplex.platform.bench.engine import EngineResult
from loraplex.platform.bench.floors import Work
from loraplex.platform.bench.mixes import FEWER, LARGE_RANK, WITH_LARGE, mix_series, rank_sum
from loraplex.platform.bench.scale import FEW, scale_series
from loraplex.platform.bench.series import Case, Contender, Metric, Series
from loraplex.platform.bench.step_floors import GEMM, READ

COMPARED_SIZE = 16
"""Requests per step of the ratios whose name ends in it."""
MANY = 2000
"""Registered adapters of the ratio that is named after them."""
_LONG_BASE = Series("step_ms", "loraplex", "long_base", COMPARED_SIZE)
_LONG_DISTINCT = Series("step_ms", "loraplex", "long_distinct", COMPARED_SIZE)


def ratios(result: EngineResult) -> dict[str, float | None]:
    """Medians of the ratios within each repetition, so that slow moments cancel out; those to
    floors, and that of one large rank, are of the fastest step of the run to the machine's best.

    A ratio whose parts were not measured is None.
    """
    return _between_engines(result) | _to_floors(result) | _of_ranks_and_scale(result)


def step_floor_ms(result: EngineResult, work: Work) -> float | None:
    """How long a step's work would take this machine at its best; None where it was not
    measured."""
    read, gemm = result.values.get(READ), result.values.get(GEMM)
    return work.floor_ms(max(read), max(gemm)) if read and gemm else None


def large_rank_growth(result: EngineResult) -> tuple[float, float] | None:
    """How much longer 15 requests of rank 8 wait for a token once one of rank 128 is beside them,
    and its share of Σ rank."""
    fewer = result.values.get(mix_series(FEWER))
    with_large = result.values.get(mix_series(WITH_LARGE))
    if not fewer or not with_large:
        return None
    return min(with_large) / min(fewer) - 1, LARGE_RANK / rank_sum(WITH_LARGE)


def scale_over_few(result: EngineResult, num_registered: int) -> float | None:
    """Throughput with so many registered adapters ÷ that with 5; None where it was not measured."""
    many, few = (result.values.get(scale_series(number), []) for number in (num_registered, FEW))
    return _median_ratio(many, few)


def _between_engines(result: EngineResult) -> dict[str, float | None]:
    def values(
        engine: Contender,
        case: Case,
        metric: Metric = "decode_tokens_per_s",
        size: int = COMPARED_SIZE,
    ) -> list[float]:
        return result.values.get(Series(metric, engine, case, size), [])

    distinct, base = values("loraplex", "distinct"), values("loraplex", "base")
    sizes = result.plan.batch_sizes
    enabled = [value for size in sizes for value in values("loraplex", "base", size=size)]
    disabled = [value for size in sizes for value in values("loraplex", "base_lora_off", size=size)]
    ttft = {
        case: [value for s, values in result.values.items() if s.case == case for value in values]
        for case in ("cold", "warm")
    }
    prefill_ms = values("loraplex", "distinct", "prefill_ms")
    return {
        "decode_over_peft_16": _median_ratio(distinct, values("peft", "distinct")),
        "decode_over_mistralrs_16": _median_ratio(distinct, values("mistralrs", "distinct")),
        "decode_over_vllm_16": _median_ratio(distinct, values("vllm", "distinct")),
        "prefill_over_vllm_16": _median_ratio(values("vllm", "distinct", "prefill_ms"), prefill_ms),
        "base_over_vllm_base_16": _median_ratio(base, values("vllm", "base")),
        "lora_over_base_16": _median_ratio(distinct, base),
        "distinct_over_identical_16": _median_ratio(distinct, values("loraplex", "identical")),
        "idle_tax": _median_ratio(enabled, disabled),
        "cold_over_warm_ttft": _median_ratio(ttft["cold"], ttft["warm"]),
    }


def _to_floors(result: EngineResult) -> dict[str, float | None]:
    base_ms, distinct_ms = result.values.get(_LONG_BASE), result.values.get(_LONG_DISTINCT)
    step = extra = None
    if base_ms and distinct_ms and result.base_work and result.lora_work:
        base_floor_ms = step_floor_ms(result, result.base_work)
        lora_floor_ms = step_floor_ms(result, result.lora_work)
        step = min(base_ms) / base_floor_ms if base_floor_ms else None
        extra = (min(distinct_ms) - min(base_ms)) / lora_floor_ms if lora_floor_ms else None
    prefill = {
        case: result.values.get(Series("prefill_ms", "loraplex", case, COMPARED_SIZE), [])
        for case in ("long_base", "long_distinct")
    }
    return {
        "step_over_floor_16": step,
        "lora_extra_over_floor_16": extra,
        "prefill_lora_over_base_16": _median_ratio(prefill["long_base"], prefill["long_distinct"]),
    }


def _of_ranks_and_scale(result: EngineResult) -> dict[str, float | None]:
    growth = large_rank_growth(result)
    return {
        "r128_beside_r8": None if growth is None else growth[0] / growth[1],
        "scale_2000_over_5": scale_over_few(result, MANY),
    }


def _median_ratio(above: Sequence[float], below: Sequence[float]) -> float | None:
    """Of the repetitions that both have: a slow peer's are fewer, and the first."""
    both = list(zip(above, below, strict=False))
    return statistics.median(a / b for a, b in both) if both else None
