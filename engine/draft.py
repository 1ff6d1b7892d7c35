"""The plan of one step while it is being made."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.cost_features import Floats, Row, Rows, StepFeatures
from loraplex.engine.decode_rows import DecodeRows
from loraplex.engine.plan import Chunk, Preempted, StepPlan
from loraplex.engine.request import Request


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
        self.evictions: list[AdapterKey] = []
        self.preempted: list[Preempted] = []
        self._decoding = decoding
        self.selection = decoding.nobody
        """Who decodes, in the order of `decodes`."""
        self.decodes = decoding.decodes(decoding.nobody)
        self.chunks: list[Chunk] = []
        """Of prompts; a chunk of one token that samples counts as a decode, whose work it is."""
        self.prefilling: list[Request] = []
        """Whose `chunks` are."""
        self._ends: dict[str, int] = {}

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

    def prefill(self, request: Request) -> None:
        """Give the request as much of the step as it can use."""
        start, token_ids = request.num_computed_tokens, request.token_ids
        num_tokens = min(len(token_ids) - start, self.budget)
        end = start + num_tokens
        self.chunks.append(
            Chunk(
                request.key,
                request.adapter,
                tuple(token_ids[start:end]),
                start,
                tuple(request.block_table),
                request.sample_spec() if end == len(token_ids) else None,
            )
        )
        self.prefilling.append(request)
        self.budget -= num_tokens
        self._ends[request.key] = end

    def features(self, bytes_in_flight: int) -> StepFeatures:
        """The step so far, as the cost model sees it."""
        chunks = [_row(chunk, 0.0) for chunk in self.chunks]
        prompts = StepFeatures.of(chunks)
        alone = {
            request.adapter: request.submission.rank
            for request in self.prefilling
            if request.adapter is not None and self._run(request.adapter) is None
        }
        return StepFeatures(
            num_tokens=len(self.decodes) + prompts.num_tokens,
            num_decodes=len(self.decodes) + prompts.num_decodes,
            prefill_tokens=prompts.prefill_tokens,
            prefill_squared=prompts.prefill_squared,
            prefill_context=prompts.prefill_context,
            kv_tokens=int(self.decodes.positions.sum()) + prompts.kv_tokens,
            sum_rank=float(self.selection.ranks.sum()) + sum(alone.values()),
            num_adapters=int((self.selection.groups > 0).sum()) + len(alone),
            bytes_in_flight=bytes_in_flight,
        )

    def rows(self) -> Rows:
        """What each part of the step asks of the machine: of the selected, then of the chunks."""
        lengths = self.decodes.roster.lengths
        counts: Floats = lengths.astype(np.float64)
        alone = Counter[AdapterKey]()
        for run, adapter in self._runs_of_chunks():
            if run is not None:
                counts[run] += 1
            elif adapter is not None:
                alone[adapter] += 1
        decodes = Rows(
            num_tokens=np.ones(len(self.decodes)),
            start=self.decodes.positions.astype(np.float64),
            rank=(self.selection.ranks / counts).repeat(lengths),
            is_decode=np.ones(len(self.decodes), np.bool_),
        )
        if not self.chunks:
            return decodes
        shares = (
            0.0 if adapter is None else 1 / (alone[adapter] if run is None else counts[run])
            for run, adapter in self._runs_of_chunks()
        )
        parts = zip(self.chunks, self.prefilling, shares, strict=True)
        chunks = Rows.of([_row(chunk, r.submission.rank * share) for chunk, r, share in parts])
        return Rows(*map(np.concatenate, zip(decodes, chunks, strict=True)))

    def plan(self, step: int) -> StepPlan:
        """The finished plan."""
        return StepPlan(
            step=step,
            prefills=tuple(self.chunks),
            loads=tuple(self.loads),
            evictions=tuple(self.evictions),
            preempted=tuple(self.preempted),
            decodes=self.decodes,
        )

    def _runs_of_chunks(self) -> Iterator[tuple[int | None, AdapterKey | None]]:
        for chunk in self.chunks:
            yield (None if chunk.adapter is None else self._run(chunk.adapter)), chunk.adapter

    def _run(self, adapter: AdapterKey) -> int | None:
        """The run of decodes on an adapter, if there is one."""
        groups, group = self.selection.groups, self._decoding.group(adapter)
        run = int(groups.searchsorted(group))
        return run if run < len(groups) and groups[run] == group else None


def _row(chunk: Chunk, rank: float) -> Row:
    num_tokens = len(chunk.token_ids)
    return Row(num_tokens, chunk.start, rank, num_tokens == 1 and chunk.sample is not None)
