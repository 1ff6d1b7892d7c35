"""A run of `loraplex bench engine` as JSON, as a table and as Markdown."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict

from loraplex.platform.bench.engine import EngineResult
from loraplex.platform.bench.phases import PHASES
from loraplex.platform.bench.series import Case, Contender, Series

COMPARED_SIZE = 16
"""Requests per step of the ratios whose name ends in it."""

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
    return document


def ratios(result: EngineResult) -> dict[str, float | None]:
    """Medians of the ratios within each repetition, so that slow moments cancel out."""

    def decode(engine: Contender, case: Case, size: int = COMPARED_SIZE) -> list[float]:
        return result.values.get(Series("decode_tokens_per_s", engine, case, size), [])

    distinct, base = decode("loraplex", "distinct"), decode("loraplex", "base")
    sizes = result.plan.batch_sizes
    enabled = [value for size in sizes for value in decode("loraplex", "base", size)]
    disabled = [value for size in sizes for value in decode("loraplex", "base_lora_off", size)]
    ttft = {
        case: [value for s, values in result.values.items() if s.case == case for value in values]
        for case in ("cold", "warm")
    }
    return {
        "decode_over_peft_16": _median_ratio(distinct, decode("peft", "distinct")),
        "lora_over_base_16": _median_ratio(distinct, base),
        "distinct_over_identical_16": _median_ratio(distinct, decode("loraplex", "identical")),
        "idle_tax": _median_ratio(enabled, disabled),
        "cold_over_warm_ttft": _median_ratio(ttft["cold"], ttft["warm"]),
    }


def decode_table(result: EngineResult) -> tuple[Row, list[Row]]:
    """Header and rows: output tokens per second, a row per batch size."""
    columns: list[tuple[str, Contender, Case]] = [
        ("distinct", "loraplex", "distinct"),
        ("one adapter", "loraplex", "identical"),
        ("base", "loraplex", "base"),
        ("base, LoRA off", "loraplex", "base_lora_off"),
    ]
    if result.peft:
        columns.append(("PEFT, distinct", "peft", "distinct"))
    rows: list[Row] = [
        (
            size,
            *(
                _spread(result.values[Series("decode_tokens_per_s", engine, case, size)])
                for _, engine, case in columns
            ),
        )
        for size in result.plan.batch_sizes
    ]
    return ("requests", *(name for name, *_ in columns)), rows


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


def tables(result: EngineResult) -> list[tuple[str, tuple[Row, list[Row]]]]:
    """All tables with their titles, in order."""
    plan = result.plan
    shown = [
        (
            f"Decode throughput, tokens/s: median (least, most) of {plan.repeats}",
            decode_table(result),
        ),
        ("TTFT of one request, ms: median (least, most)", ttft_table(result)),
        ("Ratios: medians of the ratios within each repetition", ratio_table(result)),
    ]
    if result.profile:
        shown.append(("Where a decode step's time goes, ms", profile_table(result)))
    return shown


def summary(result: EngineResult) -> str:
    """What was run on what, in one paragraph."""
    plan = result.plan
    ranks = ", ".join(map(str, dict.fromkeys(result.adapter_ranks)))
    peft = f" PEFT {result.peft}." if result.peft else ""
    equal = result.tokens_equal_to_peft
    same = "" if equal is None else f" Of all greedy tokens {equal:.1%} equal PEFT's."
    return (
        f"{result.machine}. {result.model}, {len(result.adapter_ranks)} adapters of ranks {ranks} "
        f"in turn on all linear layers; prompts of {plan.prompt_tokens} random tokens, "
        f"{plan.new_tokens} new ones, seed {plan.seed}.{peft}{same}"
    )


def as_markdown(result: EngineResult, chart: str) -> str:
    """A page; `chart` is the picture's name beside it."""
    parts = ["# `loraplex bench engine`", summary(result), f"![Throughput and TTFT]({chart})"]
    for title, (header, rows) in tables(result):
        lines = [header, ["---"] * len(header), *rows]
        parts.append(f"## {title}")
        parts.append("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))
    return "\n\n".join(parts) + "\n"


def _run(result: EngineResult) -> dict[str, object]:
    return asdict(result.plan) | {
        "model": result.model,
        "adapter_ranks": result.adapter_ranks,
        "peft": result.peft,
        "tokens_equal_to_peft": result.tokens_equal_to_peft,
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


def _median_ratio(above: Sequence[float], below: Sequence[float]) -> float | None:
    if not above or not below:
        return None
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _spread(values: Sequence[float]) -> str:
    middle, least, most = map(_short, (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least}, {most})"


def _short(value: float) -> str:
    """Three digits, and never an exponent."""
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}"
