"""What a simulated run leaves behind, for metrics and reports."""

from dataclasses import dataclass, field

from loraplex.adapters.residency import PrefetchCounts


@dataclass(slots=True)
class Record:
    """What happened to one request; times in seconds since the first arrival."""

    tenant: str
    adapter: str | None
    arrival_s: float
    prompt_tokens: int
    output_tokens: int = 0
    """Tokens that it got."""
    started_s: float | None = None
    """When the first step that computed any of it was planned."""
    first_token_s: float | None = None
    """As its client saw it; so is `end_s`."""
    end_s: float | None = None
    cancelled: bool = False
    cached_tokens: int = 0
    """Of its prompt, found in the cache when it started."""
    machine_ms: float = 0.0
    """Its parts of the times of its steps."""

    @property
    def ttft_s(self) -> float | None:
        """Time to first token; None if it never had one."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None if there was at most one."""
        if self.first_token_s is None or self.end_s is None or self.output_tokens < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def service(self) -> float:
        """Prompt tokens plus twice the output tokens, as VTC weighs them."""
        return self.prompt_tokens + 2.0 * self.output_tokens


@dataclass(slots=True)
class Run:
    """One simulated run."""

    records: list[Record]
    duration_s: float = 0.0
    """Until the last request has ended."""
    last_arrival_s: float = 0.0
    num_steps: int = 0
    num_preempted: int = 0
    num_swapped: int = 0
    """Of those: how often what was computed was copied to the host."""
    busy_ms: float = 0.0
    decode_ms: float = 0.0
    """Sum over steps of their time × requests that decoded."""
    interrupted_ms: float = 0.0
    """The part of it that those requests would not have waited for without others' prompts and
    loads."""
    load_stall_ms: float = 0.0
    """The part of that which is for loads alone."""
    num_loads: int = 0
    critical_bytes: int = 0
    """Of loads that a request waited for."""
    prefetched: PrefetchCounts = field(default_factory=PrefetchCounts)
    planner_us: list[float] = field(default_factory=list)
    """Wall time of planning and committing each step, of this machine."""
    bound_used: float | None = None
    """The largest part of the policy's bound on unfairness that was used; None if it has none."""
