"""What `loraplex bench routes` measures, and what comes of it."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from loraplex.platform.bench.machine import Machine
from loraplex.platform.bench.scale import ScaleFacts

RouteName = Literal["resident", "wait", "layer-wise", "assist", "chosen", "prefetch"]
"""How requests come to run on their adapters: it is there; always by one route; by whichever is
predicted to be the fastest; by a hint before they come."""
RESIDENT: RouteName = "resident"
HINTED: RouteName = "prefetch"
FORCED: tuple[RouteName, ...] = ("wait", "layer-wise", "assist")
ROUTES: tuple[RouteName, ...] = (RESIDENT, *FORCED, "chosen", HINTED)


@dataclass(frozen=True, slots=True)
class RoutesPlan:
    """What is measured."""

    ratios: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    """Time of a copy ÷ time to compute the prompt on an adapter that is there."""
    rounds: int = 5
    """Of each route at each ratio."""
    prompt_tokens: int = 256
    rank: int = 16
    """Of adapters, on all linear layers but the head."""
    num_beside: int = 4
    """Requests that decode where gaps between tokens are measured."""
    num_assistants: int = 1
    """Processes that compute adapters' parts on the host."""
    calibration_s: float = 12.0
    """In which the cost model learns, before anything is measured."""
    num_registered: int = 2000
    """Adapters whose throughput is compared with that of 5; 0 leaves this out."""
    seed: int = 0
    is_quick: bool = False
    """Of a model and of sizes at which everything runs and times mean little."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What requests that decoded saw of one that came, and that one of them."""

    gaps_ms: tuple[float, ...]
    """Between tokens of each, in the time that is the same for all routes."""
    ttft_ms: float
    """Of the one that came."""


@dataclass(slots=True)
class Samples:
    """Of one route at one ratio, by round."""

    ttft_ms: list[float] = field(default_factory=list)
    """From submission to the first token, of a request alone."""
    token_ids: list[int] = field(default_factory=list)
    """The first tokens."""
    beside: list[Beside] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)
    """How requests came to run, as the engine counts them."""
    num_warm_up: int = 0
    """Requests before the first round."""


@dataclass(frozen=True, slots=True)
class RatioSamples:
    """All routes at one ratio."""

    ratio: float
    prefill_ms: float
    """Of a prompt on an adapter that is there, just before: what the throttle was set by."""
    copy_bytes_per_s: int
    """What the copy was throttled to."""
    by_route: Mapping[RouteName, Samples]


@dataclass(frozen=True, slots=True)
class ScaleSamples:
    """Throughput of many registered adapters and of 5, in output tokens a second, by round."""

    facts: ScaleFacts
    many: tuple[float, ...]
    few: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RoutesResult:
    """All that was measured in one run."""

    machine: Machine
    plan: RoutesPlan
    model: str
    adapter_bytes: int
    """Of each, on the device."""
    ratios: tuple[RatioSamples, ...]
    scale: ScaleSamples | None = None

    @property
    def prefill_ms(self) -> float:
        """Of a prompt on an adapter that is there: median of what throttles were set by."""
        return statistics.median(at.prefill_ms for at in self.ratios)
