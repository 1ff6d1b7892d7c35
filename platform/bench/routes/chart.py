"""A run of `loraplex bench routes` as a picture."""

from collections.abc import Callable, Mapping, Sequence
from math import nan
from pathlib import Path
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loraplex.platform.bench.routes.plan import ROUTES, RouteName, RoutesResult
from loraplex.platform.bench.routes.ratios import Row, rows

# Okabe and Ito's colours, which people with any colour vision can tell apart.
_COLORS: Mapping[RouteName, str] = MappingProxyType(
    {
        "resident": "#999999",
        "wait": "#D55E00",
        "layer-wise": "#E69F00",
        "assist": "#56B4E9",
        "chosen": "#0072B2",
        "prefetch": "#009E73",
    }
)


def draw_chart(result: RoutesResult, path: Path) -> None:
    """Save a PNG: by load ÷ prefill, each route's first token and what requests beside it feel."""
    found = rows(result)
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    figure.suptitle(f"{result.machine}; the link is emulated", fontsize=8)
    first, gaps = figure.subplots(1, 2)
    _draw(first, found, lambda row: row.ttft_over_resident)
    first.set(title="First token", ylabel="÷ that on an adapter that is there", ylim=(0, None))
    _draw(gaps, found, lambda row: row.tpot_over_resident or nan)
    gaps.set(title="Mean gap between tokens of others", ylabel="÷ all adapters there")
    gaps.axhline(1.05, color="black", linewidth=0.8, linestyle="dashed")
    figure.savefig(path, dpi=110)


def _draw(axes: Axes, found: Sequence[Row], value: Callable[[Row], float]) -> None:
    for route in ROUTES:
        points = [(row.load_over_prefill, value(row)) for row in found if row.route == route]
        line = "--" if route == "resident" else "-o"
        axes.plot(*zip(*points, strict=True), line, color=_COLORS[route], label=route)
    ratios = sorted({row.load_over_prefill for row in found})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
    axes.set(xlabel="time of a copy ÷ time of a prompt")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False)
