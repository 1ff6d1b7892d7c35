"""Frozen configuration of one worker; settings are turned into this once, at its composition."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from loraplex.engine.protocol import ServiceTier

RouteMode = Literal["choose", "wait", "layer-wise", "assist"]
"""How a request goes on whose adapter is not on the device: by what is predicted to be the fastest,
or always the same way, for comparison."""
PrefetchMode = Literal["none", "queue", "all"]
"""`queue` looks ahead among requests that wait; `all` also expects those that may come."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which base model, and how it is computed."""

    path: Path
    name: str
    device: str
    """`cpu` or `cuda`, never `auto`: that was decided before."""
    dtype: str
    """`float32`, `bfloat16`, `float16`, or `auto` for that of the checkpoint."""
    max_model_len: int | None = None
    """Longest prompt plus output in tokens; None takes the model's own limit."""


@dataclass(frozen=True, slots=True)
class Targets:
    """When tokens should come: the first so long after arrival, each other so long after the one
    before. They order requests and bound steps; nothing is refused for them."""

    ttft_ms: float = inf
    tpot_ms: float = inf


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Caps of the scheduler; each is a bound that holds at every moment."""

    num_blocks: int
    block_size: int
    """Tokens per KV block."""
    max_step_tokens: int
    """Rows of one forward pass."""
    max_running: int
    """Requests that hold KV blocks."""
    max_waiting_requests: int
    max_waiting_tokens: int
    """Prompt tokens of all waiting requests together."""
    max_model_len: int
    vocab_size: int
    """Token ids are below it."""
    prefix_cache: bool = True
    """Keep what requests computed, for those that begin alike."""
    num_host_blocks: int = 0
    """KV blocks of the host's memory, for preempted requests; 0 computes them again."""
    copy_ms_per_block: float = 0.0
    """Time to copy one of them, one way; 0 learns it from the first."""
    targets: Mapping[ServiceTier, Targets] = field(default_factory=lambda: MappingProxyType({}))
    """By tier; one that is not in it has none."""
    max_transfer_bytes: int | None = None
    """Bytes of adapters that may be on their way at a time, but for one load, which always may;
    None takes a quarter of the adapters' memory."""
    prefetch: PrefetchMode = "none"
    """Which adapters are loaded before they are needed; see `Prefetch`."""
    route: RouteMode = "wait"
    """How a request goes on whose adapter is not on the device; see `Routes`."""
    num_assistants: int = 0
    """Processes of the host that can compute adapters' parts of prompts; 0 rules that route out."""
    max_cold_passes: int = 4
    """Requests that may run on adapters which are on their way."""
    min_prefill_tokens: int = 16
    """Tokens of prompts that a step may compute, whatever it makes late."""
    min_learned_steps: int = 64
    """Steps from which the cost model has learned before its predictions bound a step."""

    kv_block_bytes: int = 0
    """Bytes of a KV block, which swapping it takes from those of adapters."""
    lent_block_bytes: int = 0
    """Bytes of a KV block, where blocks that nobody holds may be lent to adapters; 0 fixes the
    border between the two."""
    min_blocks: int = 0
    """KV blocks that are not lent."""
    kv_forecast: bool = False
    """Whether a request starts only if the KV pool is expected to hold all that run to their ends,
    and not merely what they hold now."""

    def __post_init__(self) -> None:
        if self.num_blocks * self.block_size < self.max_model_len:
            raise ValueError("the KV pool must hold at least one request of max_model_len tokens")
        if self.lent_block_bytes and self.min_blocks * self.block_size < self.max_model_len:
            raise ValueError("min_blocks must hold at least one request of max_model_len tokens")
