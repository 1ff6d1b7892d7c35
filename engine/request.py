"""A request as the engine sees it: resumable values plus where their computation stands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, Self

import msgspec

from loraplex.adapters.residency_counts import Route
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.cached_block import Namespace
from loraplex.engine.config import Targets
from loraplex.engine.host_blocks import HostCopy
from loraplex.engine.plan import Chunk, Logprobs, Penalties, SampleSpec
from loraplex.engine.protocol import Explained, Sampling, Submit, TokenLogprob, Usage
from loraplex.engine.seeds import choice_seed
from loraplex.engine.waits import Reason, WaitClock, named

_MIB = 1 << 20


class Piece(msgspec.Struct, frozen=True, gc=False):
    """What may be sent of a choice at some moment."""

    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()

    def __add__(self, later: "Piece") -> "Piece":
        return Piece(self.text + later.text, self.logprobs + later.logprobs)


class Text(Protocol):
    """Turns output tokens into what is safe to send, and notices stop strings."""

    @property
    def stopped(self) -> bool:
        """True once a stop string has matched."""
        ...

    def push(self, token_id: int, logprobs: Logprobs | None) -> Piece:
        """Take one output token, with its log-probabilities if they are to be told; return what
        may be sent now."""
        ...

    def end(self) -> Piece:
        """Return what was held back, at the end of the choice."""
        ...


class Status(Enum):
    """Where a choice stands; FINISHED is final."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Submission:
    """What a gateway sent, and what its choices have in common."""

    submit: Submit
    arrival_s: float
    adapter_bytes: int
    """Device memory of its adapter; 0 for the base model."""
    end_token_ids: frozenset[int]
    """Tokens that end a choice."""
    first_token_due_s: float
    """Arrival plus the target of its tier."""
    clock: WaitClock = field(init=False)
    """Of its first choice."""
    waited_ms: Mapping[Reason, float] = field(default_factory=dict)
    """How long that waited, by reason; set at the end."""
    open: list["Request"] = field(default_factory=list)
    """Choices that have not ended."""
    num_ended_tokens: int = 0
    """Output of those that have."""
    num_prompt_computed: int = 0
    """Prompt tokens that were ever in the KV cache: of the choice that came furthest, whatever
    preemptions took from it."""
    num_prompt_found: int = 0
    """Prompt tokens that were cached when its first choice began."""
    was_cut: bool = False
    """True once a choice ended at its cap on tokens."""
    prompt_ids: tuple[int, ...] = ()
    """Distinct ids of the prompt, where a penalty is on them."""
    namespace: Namespace = field(init=False)
    """Where its blocks are known."""
    waited_until_s: float | None = None
    """When the first step that computed any of it was planned, or it ended without one."""

    def __post_init__(self) -> None:
        submit = self.submit
        self.namespace = Namespace(submit.tenant, submit.adapter, submit.adapter_start)
        if self.sampling.repetition_penalty != 1:
            self.prompt_ids = tuple(set(self.submit.prompt))

    @classmethod
    def of(
        cls,
        submit: Submit,
        now: float,
        adapter_bytes: int,
        eos_token_ids: frozenset[int],
        targets: Targets,
    ) -> Self:
        """What has arrived at `now`, on a model whose outputs end with one of `eos_token_ids`."""
        sampling = submit.sampling
        eos = frozenset() if sampling.ignore_eos else eos_token_ids
        due_s = now + targets.ttft_ms / 1e3
        return cls(submit, now, adapter_bytes, eos | {*sampling.stop_token_ids}, due_s)

    def open_choices(self, new_text: Callable[[Submit], Text], leader: WaitClock) -> None:
        """Make its choices, each with a text of its own; their clocks follow `leader`."""
        self.open = [
            Request(self, choice, new_text(self.submit), WaitClock(self.arrival_s, leader))
            for choice in range(self.sampling.n)
        ]
        self.clock = self.open[0].clock

    @property
    def request_id(self) -> str:
        """Identity of the request, unique among those open."""
        return self.submit.request_id

    @property
    def adapter(self) -> AdapterKey | None:
        """Its adapter, which is a tenant's own; None for the base model."""
        submit = self.submit
        return None if submit.adapter is None else AdapterKey(submit.tenant, submit.adapter)

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen."""
        return self.submit.sampling

    @property
    def rank(self) -> float:
        """What its adapter adds to a step, in the cost model's sense: its MiB; 0 for the base."""
        return self.adapter_bytes / _MIB

    def explain(self, now: float) -> Explained:
        """Why its first open choice waits; the times are those of its first choice."""
        first = self.open[0]
        is_running = first.status is Status.RUNNING
        return Explained(
            request_id=self.request_id,
            state="running" if is_running else "waiting",
            waits_for=None if is_running else first.clock.reason(),
            waited_ms=named(self.clock.sums_ms(now)),
        )

    def note_waited(self, now: float) -> None:
        """Its first step is planned, or it ends; later calls change nothing."""
        if self.waited_until_s is None:
            self.waited_until_s = now

    def note_computed(self, num_tokens: int) -> None:
        """A choice has so many tokens in the KV cache."""
        num_of_prompt = min(num_tokens, len(self.submit.prompt))
        self.num_prompt_computed = max(self.num_prompt_computed, num_of_prompt)

    def usage(self) -> Usage:
        """What ran so far: the prompt once, as far as it was computed or found, and the output of
        all choices. Nothing counts before a step has run; what a request finds again of itself,
        after a preemption, was computed."""
        of_open = sum(request.num_output_tokens for request in self.open)
        return Usage(
            prompt_tokens=self.num_prompt_computed,
            cached_tokens=min(self.num_prompt_found, self.num_prompt_computed),
            completion_tokens=self.num_ended_tokens + of_open,
        )


@dataclass(slots=True, eq=False)
class Request:
    """One choice of a request between its arrival and its end: what the scheduler schedules.

    Positions, as intervals of `token_ids`::

        [0, num_prompt_tokens)            the prompt
        [num_prompt_tokens, num_tokens)   the output so far
        [0, num_computed_tokens)          in the KV cache; the rest is to be computed

    Prompt, output, seed and digest are all that is needed to go on anywhere: losing its KV blocks
    sets `num_computed_tokens` to 0 and nothing else.
    """

    submission: Submission
    choice: int
    text: Text
    clock: WaitClock
    """Why it waits, while it does."""
    token_ids: list[int] = field(default_factory=list)
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_lost_tokens: int = 0
    """What that was when it lost its blocks last."""
    enter_at: int = 0
    """`num_computed_tokens` from which one more of its blocks can be known to the prefix cache."""
    found: tuple[int, list[int]] = field(default=(-1, []))
    """The version of the cache that was searched for it last, and the blocks that were found."""
    host_copy: HostCopy | None = None
    """What it had computed, while it waits after a preemption, if that was copied."""
    status: Status = Status.WAITING
    admission: int = 0
    """Its number among admissions, while it runs."""
    route: Route | None = None
    """How it came to run on its adapter the first time, once that is known."""
    row: int = -1
    """Where it is among `DecodeRows`, while it decodes."""
    expected_tokens: float = 0.0
    """Output that is expected of it, as predicted when it was looked at last while it waited."""
    request_id: str = field(init=False)
    """Of its request."""
    key: str = field(init=False)
    """Identity of the choice, unique among those open."""
    adapter: AdapterKey | None = field(init=False)
    """What it runs on, pinned at admission."""
    adapter_start: int = field(init=False)
    """Position from which on that acts; tokens before are computed by the base model."""
    num_prompt_tokens: int = field(init=False)
    """Tokens that the client sent."""
    sampling_row: tuple[float, float, int, float, int] = field(init=False)
    """Of `plan.SAMPLING`."""
    needs_spec: bool = field(init=False)
    """True if that, and the position, do not say all of how its next token is drawn."""

    def __post_init__(self) -> None:
        submit = self.submission.submit
        self.request_id = submit.request_id
        self.token_ids = list(submit.prompt)
        self.key = choice_key(submit.request_id, self.choice)
        self.adapter = None if submit.adapter is None else AdapterKey(submit.tenant, submit.adapter)
        self.adapter_start = submit.adapter_start
        self.num_prompt_tokens = len(submit.prompt)
        sampling = submit.sampling
        seed = choice_seed(sampling.seed, self.choice)
        self.sampling_row = (
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.min_p,
            seed % 2**64,
        )
        self.needs_spec = (
            sampling.min_tokens > 0
            or bool(sampling.logit_bias)
            or sampling.top_logprobs is not None
            or self._penalties() is not None
        )

    @property
    def tenant(self) -> str:
        """Who sent it."""
        return self.submission.submit.tenant

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens that it adds to the queue while it waits; its first choice has them all."""
        return 0 if self.choice else self.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens that are known but not in the KV cache; 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def may_end(self) -> bool:
        """False while the newest token is one of those that end no choice."""
        return self.num_output_tokens > self.submission.sampling.min_tokens

    def lose_blocks(self) -> None:
        """Nothing of it is in the KV cache any more."""
        self.num_lost_tokens, self.num_computed_tokens = self.num_computed_tokens, 0
        self.found = (-1, [])

    def chunk(self, adapter: AdapterKey | None, start: int, end: int) -> Chunk:
        """Its tokens at positions [start, end), to be computed on `adapter`."""
        return Chunk(
            self.key,
            adapter,
            tuple(self.token_ids[start:end]),
            start,
            tuple(self.block_table),
            self.sample_spec() if end == len(self.token_ids) else None,
        )

    def sample_spec(self) -> SampleSpec:
        """How its next token is drawn."""
        position = len(self.token_ids) - self.num_prompt_tokens
        sampling = self.submission.submit.sampling
        temperature, top_p, top_k, min_p, seed = self.sampling_row
        forbids = position < sampling.min_tokens
        return SampleSpec(
            temperature,
            top_p,
            top_k,
            seed,
            position,
            min_p,
            sampling.logit_bias,
            self._penalties(),
            tuple(self.submission.end_token_ids) if forbids else (),
            sampling.top_logprobs,
        )

    def _penalties(self) -> Penalties | None:
        sampling = self.submission.sampling
        if (
            sampling.repetition_penalty == 1
            and not sampling.presence_penalty
            and not sampling.frequency_penalty
        ):
            return None
        return Penalties(
            repetition=sampling.repetition_penalty,
            presence=sampling.presence_penalty,
            frequency=sampling.frequency_penalty,
            prompt_ids=self.submission.prompt_ids,
            output_ids=tuple(self.token_ids[self.num_prompt_tokens :]),
        )


def choice_key(request_id: str, choice: int) -> str:
    """`Request.key` of a request's choice."""
    return f"{request_id}#{choice}" if choice else request_id
