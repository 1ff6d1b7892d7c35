"""A run of `loraplex bench engine` as JSON, as a table and as Markdown."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import get_args

from loraplex.engine.memory import MIB
from loraplex.platform.bench.engine import EngineResult
from loraplex.platform.bench.markdown import page
from loraplex.platform.bench.mixes import fit_ranks
from loraplex.platform.bench.phases import PHASES
from loraplex.platform.bench.ratios import (
    MANY,
    large_rank_growth,
    ratios,
    scale_over_few,
    step_floor_ms,
)
from loraplex.platform.bench.scale import FEW, ScaleFacts
from loraplex.platform.bench.series import Case, Contender, Metric, Series
from loraplex.platform.bench.step_floors import GEMM, READ

Row = tuple[object, ...]


def as_json(result: EngineResult) -> dict[str, object]:
    """Everything, for programs; a ratio is null where its parts were not measured."""
    document: dict[str, object] = {
        "machine": asdict(result.machine),
        "run": _run(result),
        "rows": [_row(series, values) for series, values in _shown(result)],
        "ratios": ratios(result),
    }
    if result.profile:
        document["profile"] = [asdict(row) | {"step_ms": row.step_ms} for row in result.profile]
    if (fit := fit_ranks(result.values)) is not None:
        document["ranks"] = asdict(fit)
    if result.scale is not None:
        over_few = scale_over_few(result, result.scale.num_registered)
        document["scale"] = asdict(result.scale) | {"over_5": over_few}
    if result.base_work is not None and result.lora_work is not None:
        document["floors_ms"] = {
            "step": step_floor_ms(result, result.base_work),
            "lora": step_floor_ms(result, result.lora_work),
        }
    return document


def batch_table(result: EngineResult, metric: Metric) -> tuple[Row, list[Row]]:
    """Header and rows: one metric of decoding or prefill, a row per batch size."""
    columns: list[tuple[str, Contender, Case]] = [
        ("distinct", "loraplex", "distinct"),
        ("one adapter", "loraplex", "identical"),
        ("base", "loraplex", "base"),
        ("base, LoRA off", "loraplex", "base_lora_off"),
    ]
    for engine in result.peers:
        columns += [(f"{name(engine)}, distinct", _contender(engine), "distinct")]
        columns += [(f"{name(engine)}, base", _contender(engine), "base")]
    rows: list[Row] = [
        (
            size,
            *(
                _spread(result.values.get(Series(metric, engine, case, size), []))
                for _, engine, case in columns
            ),
        )
        for size in result.plan.batch_sizes
    ]
    return ("requests", *(title for title, *_ in columns)), rows


def name(engine: str) -> str:
    """As it is written."""
    return {"peft": "PEFT", "mistralrs": "mistral.rs", "vllm": "vLLM"}[engine]


def _contender(engine: str) -> Contender:
    return next(c for c in get_args(Contender) if c == engine)


def ttft_table(result: EngineResult) -> tuple[Row, list[Row]]:
    """Header and rows: milliseconds to the first token of one request, a row per rank."""
    ranks = sorted({series.rank for series in result.values if series.rank is not None})
    rows: list[Row] = [
        (
            rank,
            *(
                _spread(result.values[Series("ttft_ms", "loraplex", case, 1, rank)])
                for case in ("warm", "cold")
            ),
        )
        for rank in ranks
    ]
    return ("rank", "warm", "cold"), rows


def ratio_table(result: EngineResult) -> tuple[Row, list[Row]]:
    """Header and rows: the ratios that were measured."""
    return ("ratio", "value"), [
        (name, _short(value)) for name, value in ratios(result).items() if value is not None
    ]


def profile_table(result: EngineResult) -> tuple[Row, list[Row]]:
    """Header and rows: mean milliseconds of each phase of a decode step."""
    return (
        ("requests", "case", *PHASES, "step", "cost"),
        [
            (
                row.num_requests,
                row.case,
                *(f"{row.phases_ms[name]:.2f}" for name in PHASES),
                f"{row.step_ms:.1f}",
                f"{row.cost:.3f}",
            )
            for row in result.profile
        ],
    )


def floor_table(result: EngineResult) -> tuple[Row, list[Row]]:
    """Header and rows: what the machine can do, and steps at the long context beside that."""
    rows: list[Row] = []
    for label, series, unit in (
        ("memory read, GB/s", READ, 1e9),
        ("large products, GFLOP/s", GEMM, 1e9),
        ("torch on 16 rows, GFLOP/s", Series("gemm_flops_per_s", "machine", "few_rows", 16), 1e9),
    ):
        rows.append((label, _short(max(result.values[series]) / unit), ""))
    works = {"long_base": result.base_work, "long_distinct": result.lora_work}
    fastest = {
        case: min(result.values[Series("step_ms", "loraplex", case, 16)])
        for case in ("long_base", "long_distinct")
    }
    floors = {case: step_floor_ms(result, work) for case, work in works.items() if work is not None}
    extra_ms = fastest["long_distinct"] - fastest["long_base"]
    rows.append(("step of 16, base, ms", _short(fastest["long_base"]), _ms(floors["long_base"])))
    rows.append(("more with 16 adapters, ms", _short(extra_ms), _ms(floors["long_distinct"])))
    return ("what", "fastest", "floor"), rows


def rank_table(result: EngineResult) -> tuple[Row, list[Row]]:
    """Header and rows: steps by Σ rank, and the line through them."""
    fit = fit_ranks(result.values)
    assert fit is not None
    return ("Σ rank of 16 requests", "fastest step, ms", "by the line, ms"), [
        (total, _short(ms), _short(fit.at_zero_ms + fit.slope_ms * total))
        for total, ms in zip(fit.rank_sums, fit.step_ms, strict=True)
    ]


def scale_table(result: EngineResult) -> tuple[Row, list[Row]]:
    """Header and rows: throughput by registered adapters."""
    series = [s for s in result.values if s.case == "registered"]
    return ("registered", "output tokens/s, loads included"), [
        (s.num_registered, _spread(result.values[s]))
        for s in sorted(series, key=lambda s: s.num_registered or 0)
    ]


def tables(result: EngineResult) -> list[tuple[str, tuple[Row, list[Row]]]]:
    """All tables with their titles, in order."""
    plan = result.plan
    spread = f"median (least, most) of {plan.repeats}"
    shown = [
        (f"Decode throughput, tokens/s: {spread}", batch_table(result, "decode_tokens_per_s")),
        (f"Until all requests have a token, ms: {spread}", batch_table(result, "prefill_ms")),
        ("TTFT of one request, ms: median (least, most)", ttft_table(result)),
        ("Ratios", ratio_table(result)),
    ]
    if plan.with_floors:
        shown.append(("Floors", floor_table(result)))
    if plan.with_ranks:
        shown.append((_rank_title(result), rank_table(result)))
    if result.scale is not None:
        shown.append((_scale_title(result, result.scale), scale_table(result)))
    if result.profile:
        shown.append(("Where a decode step's time goes, ms", profile_table(result)))
    return shown


def _rank_title(result: EngineResult) -> str:
    fit, growth = fit_ranks(result.values), large_rank_growth(result)
    assert fit is not None
    assert growth is not None
    return (
        f"Steps by Σ rank: {fit.slope_ms * 1e3:.1f} µs a rank, {fit.at_zero_ms:.1f} ms at none, "
        f"R² {fit.r_squared:.3f}; one of rank 128 beside 15 of rank 8: "
        f"{growth[0]:+.1%} for its {growth[1]:.1%} of Σ rank"
    )


def _scale_title(result: EngineResult, scale: ScaleFacts) -> str:
    over_few = scale_over_few(result, scale.num_registered)
    compared = "" if over_few is None else f"; {_short(over_few)} of the throughput with {FEW}"
    if scale.num_registered != MANY:
        compared += f" (scale_{MANY}_over_{FEW} is of {MANY} alone)"
    return (
        f"Registered adapters of {scale.adapter_bytes / MIB:.1f} MiB by turns: at the end "
        f"{scale.on_device} in memory and {scale.on_host} in the host's, "
        f"{scale.num_loads} loads for {scale.num_requests} requests{compared}"
    )


def summary(result: EngineResult) -> str:
    """What was run on what, in one paragraph."""
    plan = result.plan
    ranks = ", ".join(map(str, dict.fromkeys(result.adapter_ranks)))
    clock = " All times are of the processor." if plan.by_processor_time else ""
    peers = "".join(f" {name(peer)} {versions}." for peer, versions in result.peers.items())
    same = "".join(
        f" On adapters {equal:.1%} of what was written greedily equal {name(peer)}'s."
        for peer, equal in result.tokens_equal.items()
        if equal is not None
    )
    return (
        f"{result.machine}. {result.model}, {len(result.adapter_ranks)} adapters of ranks {ranks} "
        f"in turn on all linear layers; prompts of {plan.prompt_tokens} tokens, "
        f"{plan.new_tokens} new ones, seed {plan.seed}.{clock}{peers}{same}"
    )


def as_markdown(result: EngineResult, chart: str) -> str:
    """A page; `chart` is the picture's name beside it."""
    parts = ["# `loraplex bench engine`", summary(result), f"![Throughput and TTFT]({chart})"]
    return page(parts, tables(result))


def _run(result: EngineResult) -> dict[str, object]:
    return asdict(result.plan) | {
        "model": result.model,
        "adapter_ranks": result.adapter_ranks,
        "peers": result.peers,
        "tokens_equal": result.tokens_equal,
        "tokens_equal_to_peft": result.tokens_equal.get("peft"),
    }


def _shown(result: EngineResult) -> list[tuple[Series, list[float]]]:
    return [
        (series, values)
        for series, values in result.values.items()
        if series.metric != "profiled_tokens_per_s"
    ]


def _row(series: Series, values: Sequence[float]) -> dict[str, object]:
    return asdict(series) | {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "repeats": len(values),
    }


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    middle, least, most = map(_short, (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least}, {most})"


def _ms(value: float | None) -> str:
    return "–" if value is None else _short(value)


def _short(value: float) -> str:
    """Three digits, and never an exponent."""
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}"
