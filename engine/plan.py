"""The plan of one step: a frozen value that the scheduler makes and the runner obeys."""

from dataclasses import dataclass

from loraplex.adapters.spec import AdapterKey


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """How the token after a chunk is drawn. The random number depends on seed and position only."""

    temperature: float
    top_p: float
    top_k: int
    """0 keeps all tokens."""
    seed: int
    position: int
    """Number of the output token that is drawn, from 0."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens at positions [start, start + len(token_ids)) of one request, computed in this step."""

    request_id: str
    adapter: AdapterKey | None
    """None computes the base model."""
    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    """KV blocks of the request, covering at least start + len(token_ids) positions."""
    sample: SampleSpec | None
    """None while the prompt goes on after this chunk."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does."""

    step: int
    chunks: tuple[Chunk, ...]
    """Rows of the batch in order: base rows first, then grouped by adapter."""
    loads: tuple[AdapterKey, ...]
    """Adapters whose transfer starts in this step."""
    evictions: tuple[AdapterKey, ...]
    """Adapters whose memory is given up before the loads start."""
    num_preempted: int
    """Requests that lost their KV blocks to make room, to be recomputed later."""

    @property
    def num_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)

    @property
    def num_adapters(self) -> int:
        """Distinct adapters of the forward pass; the base model does not count."""
        return len({chunk.adapter for chunk in self.chunks if chunk.adapter is not None})


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What the runner returns for a plan."""

    tokens: dict[str, int]
    """Request id to sampled token id, for each chunk that samples and did not fail."""
    failures: dict[str, str]
    """Request id to reason, for rows whose logits were not finite."""
