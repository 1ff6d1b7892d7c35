"""The passes that are under way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.batch import StepBatch
from loraplex.engine.cold_pass import ColdPass
from loraplex.engine.plan import Chunk, ColdChunk, ColdOutput


class Begun(NamedTuple):
    """A pass, and the rows that it computes."""

    batch: StepBatch
    cold_pass: ColdPass


Begin = Callable[[Chunk, LoadProgress], Begun]
"""Makes the pass of a chunk whose adapter may be used early."""


@dataclass(frozen=True, slots=True)
class Advanced:
    """What became of a pass in one step."""

    key: str
    """`Request.key`."""
    output: ColdOutput
    begun: Begun


class ColdPasses:
    """Passes of one engine, by `Request.key`; belong to its thread. Each may rest in a thread of
    its own until it is done or `give_up` ends it."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._under_way: dict[str, tuple[Chunk, Begun]] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def keep(self, listed: Sequence[ColdChunk]) -> None:
        """Give up those that are listed no longer."""
        chunks = {cold.chunk.request_id: cold.chunk for cold in listed}
        for key, (chunk, begun) in tuple(self._under_way.items()):
            if chunks.get(key) != chunk:
                del self._under_way[key]
                begun.cold_pass.give_up()

    def begin(
        self, listed: Sequence[ColdChunk], arriving: Mapping[AdapterKey, LoadProgress]
    ) -> None:
        """Begin those that are new; their adapters are among those that arrive."""
        for cold in listed:
            chunk = cold.chunk
            if chunk.request_id not in self._under_way:
                assert chunk.adapter is not None, "the base model is always there"
                begun = self._begin(chunk, arriving[chunk.adapter])
                self._under_way[chunk.request_id] = chunk, begun

    def advance(
        self, listed: Sequence[ColdChunk], ends_wait: Callable[[], bool] = bool
    ) -> list[Advanced]:
        """Have all of `listed` go on that may, in this order; then wait for layers, where they may,
        until `ends_wait` turns true.

        Raises:
            Exception: what a forward pass raised.
        """
        passes = [self._under_way[cold.chunk.request_id][1].cold_pass for cold in listed]
        for cold, each in zip(listed, passes, strict=True):
            each.waited_ms = 0.0
            if cold.advances:
                each.advance(
                    cold.until_layer, may_assist=cold.may_assist, until_part=cold.until_part
                )
        for cold, each in zip(listed, passes, strict=True):
            wait_ms = cold.wait_ms - sum(other.waited_ms for other in passes)
            if cold.advances and wait_ms > 0 and each.logits is None:
                each.advance(
                    cold.until_layer,
                    may_assist=cold.may_assist,
                    wait_ms=wait_ms,
                    ends_wait=ends_wait,
                    until_part=cold.until_part,
                )
        return [self._advanced(cold.chunk.request_id) for cold in listed]

    def give_up(self) -> None:
        """End all of them where they stand."""
        while self._under_way:
            _, (_, begun) = self._under_way.popitem()
            begun.cold_pass.give_up()

    def _advanced(self, key: str) -> Advanced:
        _, begun = self._under_way[key]
        output = begun.cold_pass.progress()
        if output.is_done:
            del self._under_way[key]
        return Advanced(key, output, begun)
