"""A request as the engine sees it: a resumable value plus where its computation stands."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import SampleSpec
from loraplex.engine.protocol import Submit, Usage


class Text(Protocol):
    """Turns output tokens into text that is safe to send, and notices stop strings."""

    @property
    def stopped(self) -> bool:
        """True once a stop string has matched."""
        ...

    def push(self, token_id: int) -> str:
        """Take one output token; return the text that may be sent now."""
        ...

    def flush(self) -> str:
        """Return what was held back, at the end of the request."""
        ...


class Status(Enum):
    """Where a request stands; FINISHED is final."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """One request between its arrival and its end.

    Positions, as intervals of `token_ids`::

        [0, num_prompt_tokens)            the prompt
        [num_prompt_tokens, num_tokens)   the output so far
        [0, num_computed_tokens)          in the KV cache; the rest is to be computed

    Prompt, output, seed and digest are all that is needed to go on anywhere: losing its KV blocks
    sets `num_computed_tokens` to 0 and nothing else.
    """

    submit: Submit
    text: Text
    arrival_s: float
    adapter_bytes: int
    """Device memory of its adapter; 0 for the base model."""
    token_ids: list[int] = field(default_factory=list)
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    status: Status = Status.WAITING
    waited_until_s: float | None = None
    """When the first step that computed any of it was planned, or it ended without one."""

    def __post_init__(self) -> None:
        self.token_ids = list(self.submit.prompt)

    @property
    def request_id(self) -> str:
        """Identity of the request, unique among those open."""
        return self.submit.request_id

    @property
    def adapter(self) -> AdapterKey | None:
        """What it runs on, pinned at admission."""
        digest = self.submit.adapter
        return None if digest is None else AdapterKey(self.submit.tenant, digest)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that the client sent."""
        return len(self.submit.prompt)

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - len(self.submit.prompt)

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens that are known but not in the KV cache; 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    def sample_spec(self) -> SampleSpec:
        """How its next token is drawn."""
        sampling = self.submit.sampling
        return SampleSpec(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            position=self.num_output_tokens,
        )

    def usage(self) -> Usage:
        """What ran so far."""
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            cached_tokens=0,
            completion_tokens=self.num_output_tokens,
        )
