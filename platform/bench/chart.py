"""A run of `loraplex bench engine` as a picture."""

import statistics
from collections.abc import Sequence
from math import nan
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loraplex.platform.bench.engine import EngineResult
from loraplex.platform.bench.mixes import RankFit, fit_ranks
from loraplex.platform.bench.series import Case, Contender, Series

# Okabe and Ito's colours, which people with any colour vision can tell apart.
_BARS: Sequence[tuple[str, Contender, Case, str]] = (
    ("distinct adapters", "loraplex", "distinct", "#0072B2"),
    ("one adapter", "loraplex", "identical", "#56B4E9"),
    ("base", "loraplex", "base", "#009E73"),
    ("base, LoRA off", "loraplex", "base_lora_off", "#999999"),
    ("PEFT, distinct adapters", "peft", "distinct", "#D55E00"),
    ("mistral.rs, distinct adapters", "mistralrs", "distinct", "#CC79A7"),
    ("vLLM, distinct adapters", "vllm", "distinct", "#E69F00"),
)


def draw_chart(result: EngineResult, path: Path) -> None:
    """Save a PNG: throughput by batch size, TTFT by rank, and steps by Σ rank where they were
    measured; whiskers from least to most."""
    fit = fit_ranks(result.values)
    widths = (3, 2) if fit is None else (3, 2, 2)
    figure = Figure(figsize=(2 * sum(widths), 4.5), layout="constrained")
    figure.suptitle(str(result.machine), fontsize=8)
    decode, ttft, *more = figure.subplots(1, len(widths), width_ratios=widths)
    _draw_decode(decode, result)
    _draw_ttft(ttft, result)
    if fit is not None:
        _draw_fit(more[0], fit)
    figure.savefig(path, dpi=120)


def _draw_decode(axes: Axes, result: EngineResult) -> None:
    sizes = result.plan.batch_sizes
    bars = [
        (label, color, [Series("decode_tokens_per_s", engine, case, size) for size in sizes])
        for label, engine, case, color in _BARS
        if engine == "loraplex" or engine in result.peers
    ]
    _group(axes, result, bars, [str(size) for size in sizes])
    axes.set(title="Decode", xlabel="requests", ylabel="tokens/s")


def _draw_ttft(axes: Axes, result: EngineResult) -> None:
    ranks = sorted(set(result.adapter_ranks))
    loads: list[tuple[str, Case, str]] = [
        ("adapter in memory", "warm", "#0072B2"),
        ("adapter in the store", "cold", "#E69F00"),
    ]
    bars = [
        (label, color, [Series("ttft_ms", "loraplex", case, 1, rank) for rank in ranks])
        for label, case, color in loads
    ]
    _group(axes, result, bars, [str(rank) for rank in ranks])
    axes.set(title="First token of one request", xlabel="rank", ylabel="ms")


def _draw_fit(axes: Axes, fit: RankFit) -> None:
    ends = (0, max(fit.rank_sums))
    axes.plot(fit.rank_sums, fit.step_ms, "o", color="#0072B2", label="fastest step")
    line = [fit.at_zero_ms + fit.slope_ms * end for end in ends]
    label = f"{fit.slope_ms * 1e3:.1f} µs a rank, R² {fit.r_squared:.3f}"
    axes.plot(ends, line, color="#999999", label=label)
    axes.set(title="Step of 16 requests", xlabel="Σ rank", ylabel="ms", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False)


def _group(
    axes: Axes,
    result: EngineResult,
    bars: Sequence[tuple[str, str, Sequence[Series]]],
    names: Sequence[str],
) -> None:
    width = 0.8 / len(bars)
    for index, (label, color, group) in enumerate(bars):
        values = [result.values.get(series, [nan]) for series in group]
        middles = [statistics.median(each) for each in values]
        below = [middle - min(each) for middle, each in zip(middles, values, strict=True)]
        above = [max(each) - middle for middle, each in zip(middles, values, strict=True)]
        places = [place + (index - (len(bars) - 1) / 2) * width for place in range(len(names))]
        axes.bar(places, middles, width, label=label, color=color, yerr=(below, above), capsize=2)
    axes.set_xticks(range(len(names)), names)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False)
