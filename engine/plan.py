"""The plan of one step: a frozen value that the scheduler makes and the runner obeys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from loraplex.adapters.spec import AdapterKey


@dataclass(frozen=True, slots=True)
class Penalties:
    """Numbers that make tokens less likely that were there before, and the tokens that were.

    A function of prompt and output alone, so that a request which is preempted keeps them.
    """

    repetition: float
    """1 changes nothing; as transformers' `RepetitionPenaltyLogitsProcessor`."""
    presence: float
    """0 changes nothing; as OpenAI's, and so is the next."""
    frequency: float
    prompt_ids: tuple[int, ...]
    """In any order, each at least once."""
    output_ids: tuple[int, ...]
    """As they came."""


class SampleSpec(msgspec.Struct, frozen=True, gc=False):
    """How the token after a chunk is drawn. The random number depends on seed and position only."""

    temperature: float
    """0 takes the most likely token."""
    top_p: float
    top_k: int
    """0 keeps all tokens."""
    seed: int
    position: int
    """Number of the output token that is drawn, from 0."""
    min_p: float = 0.0
    """0 keeps all tokens."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids, each once, and what is added to their logits."""
    penalties: Penalties | None = None
    forbidden_ids: tuple[int, ...] = ()
    num_top_logprobs: int | None = None
    """Most likely tokens that are reported beside the drawn one; None reports nothing."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms of probabilities in the model's own distribution, at one position."""

    drawn: float
    top: tuple[tuple[int, float], ...] = ()
    """Token ids with their own, most likely first."""


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Tokens at positions [start, start + len(token_ids)) of one choice, computed in this step.

    Steps have hundreds, and a structure of msgspec is made in a fifth of a dataclass's time.
    """

    request_id: str
    """Identity of the choice that it belongs to: `Request.key`."""
    adapter: AdapterKey | None
    """None computes the base model."""
    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    """Its KV blocks, covering at least start + len(token_ids) positions."""
    sample: SampleSpec | None
    """None while the prompt goes on after this chunk."""


class Preempted(NamedTuple):
    """A choice that lost its KV blocks, to be recomputed later."""

    request_id: str
    by: str
    """The choice that needed them; itself, where it was not allowed to take another's."""
    recompute_ms: float
    """What computing it again will cost, by prediction."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does."""

    step: int
    chunks: tuple[Chunk, ...]
    """Rows of the batch in order: base rows first, then grouped by adapter."""
    loads: tuple[AdapterKey, ...]
    """Adapters whose transfer starts in this step."""
    evictions: tuple[AdapterKey, ...]
    """Adapters whose memory is given up before the loads start, prefetches on their way too."""
    preempted: tuple[Preempted, ...] = ()
    """Choices that made room."""
    prefetches: tuple[AdapterKey, ...] = ()
    """Adapters whose transfer starts although no request needs them yet."""
    claims: tuple[AdapterKey, ...] = ()
    """Adapters on their way as prefetches, which a request needs from this step on."""

    @property
    def num_preempted(self) -> int:
        """Choices that made room, to be recomputed later."""
        return len(self.preempted)

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
    """`Chunk.request_id` to sampled token id, for each chunk that samples and did not fail."""
    failures: dict[str, str]
    """`Chunk.request_id` to reason, for rows whose logits were not finite."""
    logprobs: Mapping[str, Logprobs] = field(default_factory=dict)
    """`Chunk.request_id` to log-probabilities, for tokens whose spec asks for them."""
