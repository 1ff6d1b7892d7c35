"""A run of `loraplex bench engine` as a picture."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loraplex.platform.bench.engine import EngineResult
from loraplex.platform.bench.series import Case, Contender, Series

# Okabe and Ito's colours, which people with any colour vision can tell apart.
_BARS: Sequence[tuple[str, Contender, Case, str]] = (
    ("distinct adapters", "loraplex", "distinct", "#0072B2"),
    ("one adapter", "loraplex", "identical", "#56B4E9"),
    ("base", "loraplex", "base", "#009E73"),
    ("base, LoRA off", "loraplex", "base_lora_off", "#999999"),
    ("PEFT, distinct adapters", "peft", "distinct", "#D55E00"),
)


def draw_chart(result: EngineResult, path: Path) -> None:
    """Save a PNG: throughput by batch size, TTFT by rank; whiskers from least to most."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    decode, ttft = figure.subplots(1, 2, width_ratios=(3, 2))
    figure.suptitle(str(result.machine), fontsize=8)
    sizes, ranks = result.plan.batch_sizes, sorted(set(result.adapter_ranks))
    bars = [
        (label, color, [Series("decode_tokens_per_s", engine, case, size) for size in sizes])
        for label, engine, case, color in _BARS
        if engine == "loraplex" or result.peft
    ]
    _group(decode, result, bars, [str(size) for size in sizes])
    decode.set(title="Decode", xlabel="requests", ylabel="tokens/s")
    loads: list[tuple[str, Case, str]] = [
        ("adapter in memory", "warm", "#0072B2"),
        ("adapter in the store", "cold", "#E69F00"),
    ]
    bars = [
        (label, color, [Series("ttft_ms", "loraplex", case, 1, rank) for rank in ranks])
        for label, case, color in loads
    ]
    _group(ttft, result, bars, [str(rank) for rank in ranks])
    ttft.set(title="First token of one request", xlabel="rank", ylabel="ms")
    figure.savefig(path, dpi=120)


def _group(
    axes: Axes,
    result: EngineResult,
    bars: Sequence[tuple[str, str, Sequence[Series]]],
    names: Sequence[str],
) -> None:
    width = 0.8 / len(bars)
    for index, (label, color, group) in enumerate(bars):
        values = [result.values[series] for series in group]
        middles = [statistics.median(each) for each in values]
        below = [middle - min(each) for middle, each in zip(middles, values, strict=True)]
        above = [max(each) - middle for middle, each in zip(middles, values, strict=True)]
        places = [place + (index - (len(bars) - 1) / 2) * width for place in range(len(names))]
        axes.bar(places, middles, width, label=label, color=color, yerr=(below, above), capsize=2)
    axes.set_xticks(range(len(names)), names)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False)
