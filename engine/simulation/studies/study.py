"""What all studies have in common: where things are, tables, pictures."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import TYPE_CHECKING

from loraplex.engine.simulation.experiment import Setup, run_policy
from loraplex.engine.simulation.records import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Mapping[str, str] = {
    "fair": "#0b6e4f",
    "fair-tokens": "#7fb069",
    "fcfs": "#8d99ae",
    "slora": "#5c677d",
    "vtc": "#d1495b",
    "dlpm": "#edae49",
    "chameleon": "#6a4c93",
    "skip-scan": "#00798c",
    "drain": "#a98467",
}
"""Of policies, the same in all pictures."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a study is told by its command line."""

    paths: tuple[Path, ...]
    """Traces and profiles, in the order that the study names."""
    seeds: int = 1
    until_s: float | None = None
    """Only requests of the first so many seconds of each trace."""
    out: Path | None = None
    """Folder for pictures; None draws none."""
    policies: tuple[str, ...] = ()
    """None takes the study's own."""


def simulate(setup: Setup, policy: str, cache: str = "worth") -> Run:
    """One run, told on stderr with its speed."""
    started = process_time()
    run = run_policy(setup, policy, cache)
    seconds = process_time() - started
    sys.stderr.write(
        f"{policy}, seed {setup.seed}: {run.duration_s:,.0f} s in {seconds:.1f} s of processor "
        f"time, {run.duration_s / seconds:.0f} times as fast\n"
    )
    return run


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """As Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    sys.stdout.writelines(f"| {' | '.join(line)} |\n" for line in lines)
    sys.stdout.write("\n")
    sys.stdout.flush()


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Mean and, of several, range."""
    mean = f"{fmean(values):,.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def draw(
    out: Path | None,
    name: str,
    picture: Callable[[Sequence["Axes"]], None],
    num_axes: int = 1,
    height: float = 3.4,
) -> None:
    """Write `name`.svg with so many diagrams side by side, unless there is no folder for it."""
    if out is None:
        return
    from matplotlib import rc_context  # noqa: PLC0415  an extra
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415  an extra
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra

    out.mkdir(parents=True, exist_ok=True)
    # A fixed salt and no date, so that the same numbers make the same file.
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9, height), layout="constrained", facecolor="white")
        FigureCanvasSVG(figure)
        axes = figure.subplots(1, num_axes, squeeze=False)[0]
        picture(axes)
        for each in axes:
            each.spines[["top", "right"]].set_visible(False)
            each.grid(alpha=0.25)
        figure.savefig(out / f"{name}.svg", metadata={"Date": None})
