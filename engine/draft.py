"""The plan of one step while it is being made."""

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.cost_features import Row, StepFeatures
from loraplex.engine.plan import Chunk, Preempted, StepPlan
from loraplex.engine.request import Request

_BASE = AdapterKey("", "")


class Draft:
    """Chunks so far, how many more rows there may be, and what the cost model wants to know."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.is_bounded = False
        """True if a deadline took some of the budget."""
        self.requests: list[Request] = []
        """Whose the chunks are, in their order."""
        self.chunks: list[Chunk] = []
        self.loads: list[AdapterKey] = []
        self.prefetches: list[AdapterKey] = []
        self.claims: list[AdapterKey] = []
        self.evictions: list[AdapterKey] = []
        self.preempted: list[Preempted] = []
        self._ends: dict[str, int] = {}
        self._num_chunks_of: dict[AdapterKey, int] = {}
        self._num_decodes = 0
        self._kv_tokens = 0
        self._sum_rank = 0.0
        self._prefill = (0, 0, 0)

    def computed(self, request: Request) -> int:
        """Tokens of a running choice that are in the KV cache after this step."""
        return self._ends.get(request.key, request.num_computed_tokens)

    @property
    def has_prefills(self) -> bool:
        """True if a chunk is of a prompt."""
        return self._prefill[0] > 0

    def add_decode(self, request: Request) -> None:
        """Give a request that decodes its one row. Most chunks are these."""
        token_ids, adapter = request.token_ids, request.adapter
        start = len(token_ids) - 1
        self.chunks.append(
            Chunk(
                request.key,
                adapter,
                (token_ids[-1],),
                start,
                request.blocks(),
                request.sample_spec(),
            )
        )
        self.requests.append(request)
        self.budget -= 1
        self._num_decodes += 1
        self._kv_tokens += start
        if adapter is not None:
            self._count(adapter, request)

    def add(self, request: Request) -> None:
        """Give the request as much of the step as it can use."""
        start, adapter, token_ids = request.num_computed_tokens, request.adapter, request.token_ids
        missing = len(token_ids) - start
        if missing == 1:
            self.add_decode(request)
            return
        num_tokens = min(missing, self.budget)
        end = start + num_tokens
        self.chunks.append(
            Chunk(
                request.key,
                adapter,
                tuple(token_ids[start:end]),
                start,
                request.blocks(),
                request.sample_spec() if num_tokens == missing else None,
            )
        )
        self.requests.append(request)
        self.budget -= num_tokens
        self._ends[request.key] = end
        tokens, squared, context = self._prefill
        self._prefill = (
            tokens + num_tokens,
            squared + num_tokens * num_tokens,
            context + num_tokens * start,
        )
        if adapter is not None:
            self._count(adapter, request)

    def _count(self, adapter: AdapterKey, request: Request) -> None:
        of_adapter = self._num_chunks_of.get(adapter, 0)
        self._num_chunks_of[adapter] = of_adapter + 1
        if not of_adapter:
            self._sum_rank += request.submission.rank

    def features(self, bytes_in_flight: int) -> StepFeatures:
        """The step so far, as the cost model sees it."""
        tokens, squared, context = self._prefill
        return StepFeatures(
            num_tokens=self._num_decodes + tokens,
            num_decodes=self._num_decodes,
            prefill_tokens=tokens,
            prefill_squared=squared,
            prefill_context=context,
            kv_tokens=self._kv_tokens,
            sum_rank=self._sum_rank,
            num_adapters=len(self._num_chunks_of),
            bytes_in_flight=bytes_in_flight,
        )

    def rows(self) -> list[Row]:
        """What each chunk asks of the machine, in the order of `requests`."""
        return [
            Row(
                len(chunk.token_ids),
                chunk.start,
                request.submission.rank / self._num_chunks_of[chunk.adapter]
                if chunk.adapter is not None
                else 0.0,
                len(chunk.token_ids) == 1 and chunk.sample is not None,
            )
            for chunk, request in zip(self.chunks, self.requests, strict=True)
        ]

    def plan(self, step: int) -> StepPlan:
        """The finished plan: base rows first, then each adapter's together."""
        return StepPlan(
            step=step,
            chunks=_by_adapter(self.chunks),
            loads=tuple(self.loads),
            evictions=tuple(self.evictions),
            preempted=tuple(self.preempted),
            prefetches=tuple(self.prefetches),
            claims=tuple(self.claims),
        )


def _by_adapter(chunks: list[Chunk]) -> tuple[Chunk, ...]:
    groups: dict[AdapterKey, list[Chunk]] = {}
    for chunk in chunks:
        key = chunk.adapter or _BASE
        if key in groups:
            groups[key].append(chunk)
        else:
            groups[key] = [chunk]
    if len(groups) == 1:
        return tuple(chunks)
    return tuple(chunk for key in sorted(groups) for chunk in groups[key])
