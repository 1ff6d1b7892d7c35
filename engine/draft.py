"""The plan of one step while it is being made."""

from collections import Counter
from math import ceil
from typing import NamedTuple

import numpy as np

from loraplex.adapters.host_copies import HostOrders
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.cost_features import Row, Rows, StepFeatures
from loraplex.engine.decode_rows import DecodeRows
from loraplex.engine.plan import BlockCopy, Chunk, ColdChunk, Preempted, StepPlan
from loraplex.engine.request import Request


class PassPart(NamedTuple):
    """What a step computes of one pass on an adapter that is on its way."""

    request: Request
    num_tokens: int
    """Of the chunk."""
    start: int
    part: float
    """Of the layers."""
    is_assisted: bool = False
    """True if the host computed the adapter's part of some: it took as long as that."""

    @property
    def num_rows(self) -> int:
        """Rows of a forward pass through all layers that are as much work; 1 at least."""
        return max(1, ceil(self.num_tokens * self.part - 1e-9))

    def row(self) -> Row:
        """As a chunk of so many rows, which holds as much of the KV cache."""
        start = self.start + self.num_tokens - self.num_rows
        rank = self.request.submission.rank * self.part
        return Row(self.num_rows, start, rank, is_decode=False)


class Draft:
    """What the step computes so far, how many more rows there may be, and what the cost model wants
    to know."""

    def __init__(self, budget: int, decoding: DecodeRows) -> None:
        self.budget = budget
        self.is_bounded = False
        """True if a deadline took some of the budget."""
        self.has_yielding = False
        """True once those that yield have got what the others left."""
        self.loads: list[AdapterKey] = []
        self.prefetches: list[AdapterKey] = []
        self.claims: list[AdapterKey] = []
        self.evictions: list[AdapterKey] = []
        self.lent_blocks: list[int] = []
        self.on_host = HostOrders()
        self.preempted: list[Preempted] = []
        self.copies_out: list[BlockCopy] = []
        self.copies_in: list[BlockCopy] = []
        self._decoding = decoding
        self.selection = decoding.nobody
        """Who decodes, in the order of `decodes`."""
        self.decodes = decoding.decodes(decoding.nobody)
        self.chunks: list[Chunk] = []
        """Of prompts."""
        self.prefilling: list[Request] = []
        """Whose `chunks` are; one that has two of them comes twice."""
        self.cold: list[ColdChunk] = []
        """All passes that are under way."""
        self.passes: list[PassPart] = []
        """What is computed of them."""
        self.copy_bytes: int | None = None
        self.ended_s = 0.0
        """When the step had ended, once it has."""
        self._ends: dict[str, int] = {}

    @property
    def is_empty(self) -> bool:
        """True if the step computes nothing."""
        return not (len(self.selection) or self.chunks or self.passes)

    @property
    def prompts(self) -> list[Request]:
        """Whose the chunks of `rows` are, in their order."""
        return [*self.prefilling, *(part.request for part in self.passes)]

    def computed(self, request: Request) -> int:
        """Tokens of a running choice that are in the KV cache after this step."""
        return self._ends.get(request.key, request.num_computed_tokens)

    def slack_ms(self, now: float) -> float:
        """How long the step may take until a token of those that decode is late."""
        return self._decoding.slack_ms(self.selection, now)

    def decode(self, *, yielding: bool) -> None:
        """Give those that decode, and yield or do not, their row each."""
        selection = self._decoding.select(self.budget, yielding=yielding)
        self.budget -= len(selection)
        self.selection = self._decoding.both(self.selection, selection)
        self.decodes = self._decoding.decodes(self.selection)

    def prefill(self, request: Request, until: int | None = None) -> None:
        """Give the request as much of the step as it can use, up to position `until`: two chunks,
        if it goes on behind the position where its adapter begins to act. Attention writes the keys
        and values of all rows before any row attends, so the later chunk finds what the earlier one
        computes.
        """
        start, act_from = request.num_computed_tokens, request.adapter_start
        end = min(start + self.budget, request.num_tokens if until is None else until)
        if start < act_from:
            self._chunk(request, None, start, min(end, act_from))
        if end > act_from:
            self._chunk(request, request.adapter, max(start, act_from), end)
        self.budget -= end - start
        self._ends[request.key] = end

    def features(self, bytes_in_flight: int) -> StepFeatures:
        """The step so far, as the cost model sees it."""
        num_decodes, kv_tokens = len(self.decodes), int(self.decodes.positions.sum())
        tokens = 0
        squared = context = 0.0
        sum_rank = self.selection.sum_rank
        adapters: set[AdapterKey] = set()
        for chunk, request in zip(self.chunks, self.prefilling, strict=True):
            num_tokens, adapter = len(chunk.token_ids), chunk.adapter
            if is_decode(chunk):
                num_decodes += 1
                kv_tokens += chunk.start
            else:
                tokens += num_tokens
                squared += num_tokens * num_tokens
                context += num_tokens * chunk.start
            if adapter is not None and adapter not in adapters and self._run(adapter) is None:
                adapters.add(adapter)
                sum_rank += request.submission.rank
        for request, num_tokens, start, part, _ in self.passes:
            squared += part * num_tokens * num_tokens
            context += part * num_tokens * start
            sum_rank += part * request.submission.rank
        tokens += sum(part.num_rows for part in self.passes)
        return StepFeatures(
            num_tokens=num_decodes + tokens,
            num_decodes=num_decodes,
            prefill_tokens=tokens,
            prefill_squared=squared,
            prefill_context=context,
            kv_tokens=kv_tokens,
            sum_rank=sum_rank,
            num_adapters=self.selection.num_adapters + len(adapters),
            bytes_in_flight=bytes_in_flight,
        )

    def rows(self) -> Rows:
        """What each part of the step asks of the machine: of the selected, then of the chunks."""
        selection = self.selection
        start, rank = self.decodes.positions.astype(np.float64), selection.rank_parts
        if not self.chunks:
            return Rows(start, rank, [part.row() for part in self.passes])
        runs = [None if c.adapter is None else self._run(c.adapter) for c in self.chunks]
        sharing = Counter(chunk.adapter for chunk in self.chunks)
        chunks = []
        for chunk, run, request in zip(self.chunks, runs, self.prefilling, strict=True):
            others = 0 if run is None else int(selection.lengths[run])
            rank_of_chunk = 0.0 if chunk.adapter is None else request.submission.rank
            part = rank_of_chunk / (sharing[chunk.adapter] + others)
            chunks.append(Row(len(chunk.token_ids), chunk.start, part, is_decode(chunk)))
            if run is not None:
                first = int(selection.roster.starts[run])
                rank = rank.copy()
                rank[first : first + others] = part
        return Rows(start, rank, [*chunks, *(part.row() for part in self.passes)])

    def plan(self, step: int) -> StepPlan:
        """The finished plan."""
        return StepPlan(
            step=step,
            prefills=tuple(self.chunks),
            loads=tuple(self.loads),
            evictions=tuple(self.evictions),
            preempted=tuple(self.preempted),
            copies_out=tuple(self.copies_out),
            copies_in=tuple(self.copies_in),
            prefetches=tuple(self.prefetches),
            claims=tuple(self.claims),
            lent_blocks=tuple(self.lent_blocks),
            host_evictions=self.on_host.evictions,
            host_keeps=self.on_host.keeps,
            decodes=self.decodes,
            cold=tuple(self.cold),
            copy_bytes=self.copy_bytes,
        )

    def _chunk(self, request: Request, adapter: AdapterKey | None, start: int, end: int) -> None:
        self.prefilling.append(request)
        self.chunks.append(request.chunk(adapter, start, end))

    def _run(self, adapter: AdapterKey) -> int | None:
        return self._decoding.run(self.selection, adapter)


def is_decode(chunk: Chunk) -> bool:
    """True for the last token of a prompt by itself: its work is a decode's."""
    return len(chunk.token_ids) == 1 and chunk.sample is not None
