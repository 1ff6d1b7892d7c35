"""A run of `loraplex bench kernels` as JSON, as tables and as Markdown."""

import statistics
from collections.abc import Mapping
from dataclasses import asdict

from loraplex.platform.bench.kernels.case import OURS, Op
from loraplex.platform.bench.kernels.plan import CaseResult, KernelsResult, Timing
from loraplex.platform.bench.markdown import page

Row = tuple[object, ...]
Table = tuple[str, tuple[Row, list[Row]]]

_TITLES: Mapping[Op, str] = {
    "lora": "Low-rank updates of one step, all linear layers but the head",
    "dense": "Dense layers of one step, and the head",
    "attention": "Attention of one step",
    "elementwise": "Norms, activations, rotary positions and residuals of one step",
}
_HEADER: Row = (
    "case",
    "layers",
    "dtype",
    "contender",
    "least ms",
    "median ms",
    "÷ ours",
    "÷ floor",
)


def as_json(result: KernelsResult) -> dict[str, object]:
    """Everything, for programs."""
    return {
        "machine": asdict(result.machine),
        "run": {
            "shape": asdict(result.plan.shape),
            "is_quick": result.plan.is_quick,
            "layers": result.plan.layers,
            "seconds": result.plan.seconds,
            "seed": result.plan.seed,
        },
        "floors": asdict(result.floors),
        "rows": [_row(result, case, timing) for case in result.cases for timing in case.timings],
        "absent": [
            {"op": case.op, "case": case.name, "dtype": case.dtype} | asdict(absent)
            for case in result.cases
            for absent in case.absent
        ],
        "wrong": [
            {"op": case.op, "case": case.name, "dtype": case.dtype} | asdict(absent)
            for case in result.cases
            for absent in case.wrong
        ],
    }


def tables(result: KernelsResult) -> list[Table]:
    """A table for each op that was measured, and one of what was not."""
    shown: list[Table] = []
    plan = result.plan
    told = f" (quick: {plan.layers} of {plan.shape.num_layers} layers)" if plan.is_quick else ""
    for op, title in _TITLES.items():
        cases = [case for case in result.cases if case.op == op]
        rows = [_table_row(result, case, timing) for case in cases for timing in case.timings]
        if rows:
            shown.append((title + told, (_HEADER, rows)))
    left_out = _left_out(result)
    if left_out:
        shown.append(("Not measured", (("op", "dtype", "contender", "cases", "reason"), left_out)))
    return shown


def summary(result: KernelsResult) -> str:
    """What was run on what, in one paragraph."""
    floors, plan = result.floors, result.plan
    gemm = ", ".join(f"{name} {rate:.1f}" for name, rate in floors.gemm_gflop_per_s.items())
    quick = (
        f"**Quick: {plan.layers} of {plan.shape.num_layers} layers, fewer and shorter cases. "
        "A cache may hold what they read, so this shows that everything runs, and no speeds.** "
        if plan.is_quick
        else ""
    )
    return (
        f"{quick}{result.machine}. Shapes of {plan.shape.name}, seed {plan.seed}; each contender "
        f"had {plan.seconds:g} s a case, in turns. Best of the same run: read "
        f"{floors.read_gb_per_s:.1f} GB/s, copied (read and written) {floors.copy_gb_per_s:.1f} "
        f"GB/s, products of 1024 × 1024 × 1024 in GFLOP/s: {gemm}."
    )


def as_markdown(result: KernelsResult, chart: str) -> str:
    """A page; `chart` is the picture's name beside it."""
    parts = ["# `loraplex bench kernels`", summary(result), f"![Time ÷ floor]({chart})"]
    return page(parts, tables(result))


def over_floor(result: KernelsResult, case: CaseResult, timing: Timing) -> float:
    """Least time ÷ the floor."""
    return min(timing.times_ms) / _floor_ms(result, case)


def _left_out(result: KernelsResult) -> list[Row]:
    """Who was not measured and why, cases of one reason together."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for case in result.cases:
        for each in (*case.absent, *case.wrong):
            key = (case.op, case.dtype, each.name, each.reason)
            found.setdefault(key, []).append(case.name)
    return [(*key[:3], "; ".join(names), key[3]) for key, names in found.items()]


def _floor_ms(result: KernelsResult, case: CaseResult) -> float:
    return max(result.floors.bytes_ms(case.work), result.floors.flops_ms(case.work))


def _over_ours(case: CaseResult, timing: Timing) -> float | None:
    """Least time ÷ that of our fastest kernel."""
    ours = [min(each.times_ms) for each in case.timings if each.contender.startswith(OURS)]
    return min(timing.times_ms) / ours[0] if ours else None


def _row(result: KernelsResult, case: CaseResult, timing: Timing) -> dict[str, object]:
    return {
        "op": case.op,
        "case": case.name,
        "rows": case.rows,
        "layers": case.layers,
        "dtype": case.dtype,
        "contender": timing.contender,
        "min_ms": min(timing.times_ms),
        "median_ms": statistics.median(timing.times_ms),
        "repeats": len(timing.times_ms),
        "num_bytes": case.work.num_bytes,
        "flops": case.work.flops,
        "bytes_floor_ms": result.floors.bytes_ms(case.work),
        "flops_floor_ms": result.floors.flops_ms(case.work),
        "floor_ms": _floor_ms(result, case),
        "over_floor": over_floor(result, case, timing),
        "over_ours": _over_ours(case, timing),
    }


def _table_row(result: KernelsResult, case: CaseResult, timing: Timing) -> Row:
    ratio = _over_ours(case, timing)
    return (
        case.name,
        case.layers,
        case.dtype,
        timing.contender,
        f"{min(timing.times_ms):.2f}",
        f"{statistics.median(timing.times_ms):.2f}",
        "–" if ratio is None else f"{ratio:.2f}",
        f"{over_floor(result, case, timing):.2f}",
    )
