"""A run of `loraplex bench kernels` as a picture."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loraplex.platform.bench.kernels.plan import KernelsResult
from loraplex.platform.bench.kernels.report import over_floor

# Okabe and Ito's colours, which people with any colour vision can tell apart.
_COLORS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#999999")
_INCHES_PER_CASE = 0.55


def draw_chart(result: KernelsResult, path: Path) -> None:
    """Save a PNG: for each op, how many times its floor each contender's least time is.

    Elementwise ops are left out, unless there is nothing else: their rows come from a cache.
    """
    ops = {
        case.op: [n for n, other in enumerate(result.cases) if other.op == case.op]
        for case in result.cases
    }
    if len(ops) > 1:
        ops.pop("elementwise", None)
    heights = [len(cases) for cases in ops.values()]
    figure = Figure(figsize=(10, 2 + _INCHES_PER_CASE * sum(heights)), layout="constrained")
    axes = figure.subplots(len(ops), 1, height_ratios=heights, squeeze=False)[:, 0]
    figure.suptitle(str(result.machine), fontsize=8)
    for axis, (op, cases) in zip(axes, ops.items(), strict=True):
        _draw(axis, result, cases)
        axis.set(title=op, xlabel="least time ÷ floor (1: the machine's bandwidth or arithmetic)")
    figure.savefig(path, dpi=110)


def _draw(axis: Axes, result: KernelsResult, numbers: list[int]) -> None:
    cases = [result.cases[number] for number in numbers]
    names = list(dict.fromkeys(t.contender for case in cases for t in case.timings))
    height = 0.8 / max(1, len(names))
    for index, name in enumerate(names):
        found = [
            (place + (index - (len(names) - 1) / 2) * height, over_floor(result, case, timing))
            for place, case in enumerate(cases)
            for timing in case.timings
            if timing.contender == name
        ]
        places, values = zip(*found, strict=True)
        axis.barh(places, values, height, label=name, color=_COLORS[index % len(_COLORS)])
    axis.set_yticks(range(len(cases)), [f"{c.name}, {c.dtype}" for c in cases], fontsize=7)
    axis.set_xscale("log")
    axis.axvline(1, color="black", linewidth=0.8)
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, frameon=False)
