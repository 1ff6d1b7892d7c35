"""A bar chart of days, drawn on the server: it needs no script."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

WIDTH, HEIGHT = 1000, 190
LEFT, BOTTOM, TOP = 56, 24, 12
GAP = 0.44
MAX_DAY_LABELS = 8


@dataclass(frozen=True, slots=True)
class Bar:
    """A day and what it sums up to."""

    day: datetime
    value: int


@dataclass(frozen=True, slots=True)
class Column:
    """A bar in the picture, in its units."""

    x: float
    y: float
    width: float
    height: float
    bar: Bar
    labelled: bool
    """There is room for its day below it."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the grid."""

    y: float
    value: int


@dataclass(frozen=True, slots=True)
class Picture:
    """What the template writes as SVG."""

    width: int
    height: int
    left: int
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]


def draw(bars: Sequence[Bar]) -> Picture:
    """Lay out bars of equal width over a grid of round numbers."""
    step = _round_step(max((bar.value for bar in bars), default=0))
    top = step * max(1, math.ceil(max((bar.value for bar in bars), default=0) / step))
    scale = (HEIGHT - TOP - BOTTOM) / top
    slot = (WIDTH - LEFT) / max(len(bars), 1)
    every = math.ceil(len(bars) / MAX_DAY_LABELS)
    base = HEIGHT - BOTTOM
    columns = tuple(
        Column(
            x=LEFT + slot * (index + GAP / 2),
            y=base - bar.value * scale,
            width=slot * (1 - GAP),
            height=bar.value * scale,
            bar=bar,
            labelled=(len(bars) - 1 - index) % every == 0,
        )
        for index, bar in enumerate(bars)
    )
    lines = tuple(Line(base - value * scale, value) for value in range(0, top + 1, step))
    return Picture(WIDTH, HEIGHT, LEFT, columns, lines)


def _round_step(largest: int) -> int:
    """1, 2 or 5 times a power of ten, so that two to five lines cover the largest value."""
    power = int(10 ** max(0, math.floor(math.log10(max(largest, 1)))))
    for step in (power // 5, power // 2, power, 2 * power):
        if step >= 1 and largest <= 5 * step:
            return step
    return max(1, 2 * power)
