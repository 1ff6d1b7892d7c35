"""What is measured again and again in one run, and what is made of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Literal

Metric = Literal[
    "decode_tokens_per_s",
    "prefill_ms",
    "ttft_ms",
    "profiled_tokens_per_s",
    "step_ms",
    "output_tokens_per_s",
    "read_bytes_per_s",
    "gemm_flops_per_s",
]
Contender = Literal["loraplex", "peft", "mistralrs", "vllm", "machine"]
EngineCase = Literal["distinct", "identical", "base", "base_lora_off", "warm", "cold"]
Case = Literal[EngineCase, "long_distinct", "long_base", "ranks", "registered", "large", "few_rows"]


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity; a run holds one value of it per repetition."""

    metric: Metric
    """`prefill_ms`: until all requests of a batch have a token; `step_ms`: the fastest decode step
    of the repetition; `output_tokens_per_s`: with everything, loads too; the last two are what the
    machine can do."""
    engine: Contender
    """`machine`: no engine at all."""
    case: Case
    """`distinct`: each request on an adapter of its own, by turns where there are more requests
    than adapters; `identical`: all on one; `base` and `base_lora_off`: on none, in an engine that
    serves adapters and in one that cannot; `warm`, `cold`: the adapter is in memory, or in the
    store; `long_…`: the same at the long context; `ranks`: adapters whose ranks have a given sum;
    `registered`: adapters in turn, so many as are registered; `large`, `few_rows`: a product of
    large matrices, and one of as many rows as there are requests."""
    num_requests: int
    rank: int | None = None
    """Of the adapter, where it is one."""
    rank_sum: int | None = None
    """Of all requests' adapters, where it was chosen."""
    num_registered: int | None = None

    def __str__(self) -> str:
        """Short enough for a line of progress."""
        told = {"rank": self.rank, "Σ rank": self.rank_sum, "of": self.num_registered}
        more = "".join(f" {name} {value}" for name, value in told.items() if value is not None)
        requests = f", requests: {self.num_requests}" if self.num_requests else ""
        return f"{self.engine} {self.case}{more}{requests}"


Probe = Callable[[int], Mapping[Series, float]]
"""Measures values, given the number of the repetition: the same series in each."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """Where the time of one kind of step goes."""

    case: Case
    num_requests: int
    phases_ms: dict[str, float]
    """Means over all decode steps that were watched; together the whole step."""
    cost: float
    """Time of a watched step ÷ the same step without stop-watches."""

    @property
    def step_ms(self) -> float:
        """Mean of a watched step."""
        return sum(self.phases_ms.values())


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What is measured."""

    batch_sizes: tuple[int, ...]
    prompt_tokens: int
    new_tokens: int
    """≥ 2: the first comes with the prompt, the others are decoded."""
    repeats: int
    seed: int
    peers: tuple[str, ...]
    with_profile: bool
    with_floors: bool = False
    with_ranks: bool = False
    with_scale: bool = False
    num_registered: int = 2000
    """Adapters of `with_scale`."""
    by_processor_time: bool = False
    """Count the time in which a process computes, not that in which others have the processor."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds."""
        return process_time if self.by_processor_time else perf_counter
