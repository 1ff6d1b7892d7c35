"""What the overview's charts show: which numbers of a point, and how they are written."""

from dataclasses import dataclass

from loraplex.platform.console.sampler import Point


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart."""

    field: str
    """Of a `Point`."""
    label: str
    dashed: bool = False
    """Lines differ by more than their colour."""
    quiet: bool = False
    """It matters where it is not zero, and is drawn apart from the others."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, and the figure above it."""

    id: str
    title: str
    unit: str
    series: tuple[Series, ...]
    help: str
    digits: int = 0
    of: str | None = None
    """Field that is the whole of the first series, shown as a share."""

    def value(self, point: Point, series: Series) -> float | None:
        """What a series has at a point."""
        value = getattr(point, series.field)
        assert value is None or isinstance(value, float)
        return value


CHARTS = (
    Chart(
        "requests",
        "Requests",
        "per second",
        (
            Series("requests_per_s", "all"),
            Series("refused_per_s", "refused", dashed=True),
        ),
        "Completions that ended, over 10 s. Refused: by a quota or a full queue.",
        digits=1,
    ),
    Chart(
        "ttft",
        "Time to first token",
        "ms",
        (Series("ttft_p50_ms", "p50"), Series("ttft_p95_ms", "p95", dashed=True)),
        "From a request's arrival to its first token, over 30 s.",
    ),
    Chart(
        "tokens",
        "Tokens",
        "per second",
        (
            Series("output_tokens_per_s", "output"),
            Series("computed_tokens_per_s", "computed", dashed=True),
        ),
        "Output: as the ledger counts it. Computed: rows of all steps, prompts included.",
    ),
    Chart(
        "adapters",
        "Adapters per step",
        "mean",
        (Series("adapters_per_step", "adapters"),),
        "Distinct adapters that share one forward pass, over 10 s.",
        digits=1,
    ),
    Chart(
        "kv",
        "KV blocks",
        "held",
        (Series("kv_held", "held"), Series("kv_total", "all", dashed=True)),
        "Blocks of the KV cache that requests hold, of all there are.",
        of="kv_total",
    ),
    Chart(
        "load",
        "In the worker",
        "requests",
        (Series("running", "running"), Series("waiting", "waiting", dashed=True)),
        "Requests that share steps, and requests that wait to be admitted.",
    ),
)
