"""What is measured again and again in one run, and what is made of it."""

from dataclasses import dataclass
from typing import Literal

Metric = Literal["decode_tokens_per_s", "ttft_ms", "profiled_tokens_per_s"]
Contender = Literal["loraplex", "peft"]
Case = Literal["distinct", "identical", "base", "base_lora_off", "warm", "cold"]


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity; a run holds one value of it per repetition."""

    metric: Metric
    engine: Contender
    case: Case
    """`distinct`: each request on an adapter of its own, by turns where there are more requests
    than adapters; `identical`: all on one; `base` and `base_lora_off`: on none, in an engine that
    serves adapters and in one that cannot; `warm`, `cold`: the adapter is in memory, or in the
    store."""
    num_requests: int
    rank: int | None = None
    """Of the adapter, where it is one."""

    def __str__(self) -> str:
        """Short enough for a line of progress."""
        rank = "" if self.rank is None else f" rank {self.rank}"
        return f"{self.engine} {self.case}{rank}, requests: {self.num_requests}"


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
    with_peft: bool
    with_profile: bool
