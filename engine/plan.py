"""The plan of one step: a frozen value that the scheduler makes and the runner obeys."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from loraplex.adapters.spec import AdapterKey

SAMPLING = np.dtype(
    [("temperature", "f8"), ("top_p", "f8"), ("top_k", "i8"), ("min_p", "f8"), ("seed", "u8")]
)
"""What most choices say of how they are drawn, as `SampleSpec` has it; the seed modulo 2⁶⁴."""


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

    @classmethod
    def of(cls, sampling: tuple[float, float, int, float, int], position: int) -> Self:
        """From an entry of `SAMPLING`."""
        temperature, top_p, top_k, min_p, seed = sampling
        return cls(temperature, top_p, top_k, seed, position, min_p)


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms of probabilities in the model's own distribution, at one position."""

    drawn: float
    top: tuple[tuple[int, float], ...] = ()
    """Token ids with their own, most likely first."""


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Tokens at positions [start, start + len(token_ids)) of one choice, computed in this step."""

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


@dataclass(frozen=True, slots=True)
class ColdChunk:
    """A chunk of a prompt whose adapter is on its way to the device.

    It is computed apart from all other rows, by a pass that stops before layers which it may not
    compute yet, and goes on from there in a later step: so decodes wait for no copy. A step lists
    all passes that are under way; the runner gives up those that it does not.
    """

    chunk: Chunk
    """The same in each step until its pass has ended."""
    until_layer: int
    """How many of the adapter's layers it may have computed after this step; all of them let it end
    with the head."""
    may_assist: bool = False
    """Whether the host may compute the adapter's part of layers that are not on the device."""
    wait_ms: float = 0.0
    """How long the step may wait for layers, altogether; 0 while anybody decodes."""
    advances: bool = True
    """False if nothing of it can be computed in this step: it only stays under way."""
    until_part: float = 1.0
    """Part of the forward pass after which it rests, wherever that is, more than it has computed
    before; 1 sets no bound."""


class ColdOutput(NamedTuple):
    """How far a pass has come."""

    num_layers: int
    """Of the adapter's layers, computed so far."""
    num_host_layers: int = 0
    """Of those, by the host."""
    is_done: bool = False
    """True if KV of all its tokens is in the cache; the pass has ended."""
    token_id: int | None = None
    """What was drawn, if it is done and its chunk samples; failures and log-probabilities are in
    `StepOutput`."""
    host_ms: float = 0.0
    """From questions to the host to its answers, so far; base layers are computed meanwhile."""
    waited_ms: float = 0.0
    """How long this step has stood still for its layers; see `ColdChunk.wait_ms`."""
    part: float = 0.0
    """Of the forward pass, computed so far, layers that the adapter does not touch included."""


@dataclass(frozen=True, slots=True, eq=False)
class Roster:
    """Who decodes, in the order of rows: base rows first, then grouped by adapter.

    The same object as long as the same choices decode, so that what was derived from it can be
    kept. Arrays are read-only.
    """

    keys: tuple[str, ...]
    """`Request.key` of each of n rows."""
    adapters: tuple[AdapterKey | None, ...]
    """Of each run of rows, all different; None is the base model's and comes first."""
    starts: NDArray[np.intp]
    """[runs]: where each begins, from 0."""
    num_prompt_tokens: NDArray[np.int64]
    """[n]"""
    sampling: NDArray[np.void]
    """[n] of `SAMPLING`."""

    @property
    def lengths(self) -> NDArray[np.intp]:
        """[runs]: rows of each."""
        return np.diff(self.starts, append=len(self.keys))


@dataclass(frozen=True, slots=True, eq=False)
class Decodes:
    """The newest token of each choice that decodes, one row each. Arrays are read-only, and no
    later step writes to them."""

    roster: Roster
    token_ids: NDArray[np.int64]
    """[n]"""
    positions: NDArray[np.int64]
    """[n], each within its own choice; KV of all before it is in the cache."""
    block_tables: NDArray[np.int32]
    """[n, blocks]: KV blocks that cover the positions; -1 beyond a choice's own."""
    specs: Mapping[int, SampleSpec]
    """By row: those that ask for more than `roster.sampling` says."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def draws(self) -> NDArray[np.int64]:
        """[n]: number of the output token that each row draws, from 0."""
        return self.positions + 1 - self.roster.num_prompt_tokens

    def chunks(self) -> Iterator[Chunk]:
        """The rows as chunks, in order."""
        roster = self.roster
        runs = zip(roster.adapters, roster.lengths.tolist(), strict=True)
        rows = zip(
            roster.keys,
            (adapter for adapter, length in runs for _ in range(length)),
            self.token_ids.tolist(),
            self.positions.tolist(),
            self.block_tables.tolist(),
            (self.block_tables >= 0).sum(axis=1).tolist(),
            map(SampleSpec.of, roster.sampling.tolist(), self.draws.tolist()),
            strict=True,
        )
        for row, (key, adapter, token_id, start, table, num_blocks, sample) in enumerate(rows):
            blocks = tuple(table[:num_blocks])
            yield Chunk(key, adapter, (token_id,), start, blocks, self.specs.get(row, sample))


def no_decodes() -> Decodes:
    """Of a step in which nobody decodes."""
    none, no_sampling, no_blocks = (
        np.zeros(0, np.int64),
        np.zeros(0, SAMPLING),
        np.zeros((0, 0), "i4"),
    )
    for array in (none, no_sampling, no_blocks):
        array.setflags(write=False)
    return Decodes(Roster((), (), none, none, no_sampling), none, none, no_blocks, {})


class Preempted(NamedTuple):
    """A choice that lost its KV blocks, to go on later."""

    request_id: str
    by: str
    """The choice that needed them; itself, where it was not allowed to take another's."""
    cost_ms: float
    """What computing again what was in them will cost, or copying it to the host and back, by
    prediction."""
    is_swapped: bool = False
    """True if it is copied."""


class BlockCopy(NamedTuple):
    """KV blocks of one choice that are copied between device and host."""

    request_id: str
    """`Request.key`."""
    device_blocks: tuple[int, ...]
    host_blocks: tuple[int, ...]
    """As many, in the same order."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does.

    Most rows are of choices that decode, and come as arrays that scheduler and runner need not take
    apart; chunks of prompts are few.
    """

    step: int
    prefills: tuple[Chunk, ...] = ()
    """Chunks of prompts, and of what is recomputed after a preemption; two of one choice, one
    behind the other, where its adapter begins to act between them."""
    loads: tuple[AdapterKey, ...] = ()
    """Adapters whose transfer starts in this step."""
    evictions: tuple[AdapterKey, ...] = ()
    """Adapters whose memory is given up before the loads start, prefetches on their way too."""
    preempted: tuple[Preempted, ...] = ()
    """Choices that made room."""
    copies_out: tuple[BlockCopy, ...] = ()
    """To the host: all of them before all that follows."""
    copies_in: tuple[BlockCopy, ...] = ()
    """From the host: before anything is computed."""
    decodes: Decodes = field(default_factory=no_decodes)
    """Choices that compute one token each."""
    prefetches: tuple[AdapterKey, ...] = ()
    """Adapters whose transfer starts although no request needs them yet."""
    claims: tuple[AdapterKey, ...] = ()
    """Adapters on their way as prefetches, which a request needs from this step on."""
    lent_blocks: tuple[int, ...] = ()
    """KV blocks whose memory is given to adapters, after copies to the host; what is in them means
    nothing, also where they are used again in this step."""
    host_evictions: tuple[AdapterKey, ...] = ()
    """Adapters that the host's memory keeps no longer; before the loads start, too."""
    host_keeps: tuple[AdapterKey, ...] = ()
    """Loads and prefetches whose bytes the host's memory keeps once they were read."""
    cold: tuple[ColdChunk, ...] = ()
    """Chunks of prompts whose adapters are on their way, all that have begun and not ended."""
    copy_bytes: int | None = None
    """Bytes of adapters that may go to the device until the next plan, loads before prefetches;
    None for no bound, where nobody decodes."""

    @property
    def num_requests(self) -> int:
        """Choices of which something is computed; 0 if the step computes nothing."""
        prompts = {chunk.request_id for chunk in self.prefills}
        return len(self.decodes) + len(prompts) + sum(cold.advances for cold in self.cold)

    @property
    def num_preempted(self) -> int:
        """Choices that made room, to go on later."""
        return len(self.preempted)

    @property
    def num_copied_blocks(self) -> int:
        """KV blocks that are copied, whichever way."""
        return sum(len(copy.host_blocks) for copy in (*self.copies_out, *self.copies_in))

    @property
    def num_tokens(self) -> int:
        """Rows of the forward pass."""
        return len(self.decodes) + sum(len(chunk.token_ids) for chunk in self.prefills)

    @property
    def num_adapters(self) -> int:
        """Distinct adapters of the forward pass; the base model does not count."""
        return len(self.adapters()) - 1

    def adapters(self) -> dict[AdapterKey | None, int]:
        """In the order of rows: the base model, those of decodes, those of prompts alone."""
        found: dict[AdapterKey | None, int] = {None: 0}
        for adapter in self.decodes.roster.adapters:
            found.setdefault(adapter, len(found))
        for chunk in self.prefills:
            found.setdefault(chunk.adapter, len(found))
        return found

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """All that is computed as chunks, in the order of rows: of one adapter those that decode
        come first. Made anew each time, for those who look at single requests."""
        order = self.adapters()
        groups: list[list[Chunk]] = [[] for _ in order]
        for chunk in (*self.decodes.chunks(), *self.prefills):
            groups[order[chunk.adapter]].append(chunk)
        return tuple(chunk for group in groups for chunk in group)

    @property
    def sampled_keys(self) -> tuple[str, ...]:
        """`Request.key` of those for which a token is drawn: all that decode, then those of which
        the last chunk is computed."""
        last = (chunk.request_id for chunk in self.prefills if chunk.sample is not None)
        return (*self.decodes.roster.keys, *last)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What the runner returns for a plan."""

    token_ids: NDArray[np.int64]
    """[sampled], in the order of `StepPlan.sampled_keys`; of those that failed any number."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """`Request.key` to reason, for rows whose logits were not finite."""
    logprobs: Mapping[str, Logprobs] = field(default_factory=dict)
    """`Request.key` to log-probabilities, for tokens whose spec asks for them."""
    cold: Mapping[str, ColdOutput] = field(default_factory=dict)
    """`Request.key` to how far its pass has come, for all of `StepPlan.cold`."""

    @classmethod
    def of(
        cls, plan: StepPlan, tokens: Mapping[str, int], failures: Mapping[str, str] | None = None
    ) -> Self:
        """From token ids by `Request.key`, one for each that samples and did not fail."""
        token_ids = [tokens.get(key, 0) for key in plan.sampled_keys]
        return cls(np.array(token_ids, np.int64), failures or {})
