"""Steps of few decodes as graphs: recorded once for each size, done again at one launch each.

A small step is hundreds of kernels of a few microseconds, and launching them one by one takes the
host longer than the GPU needs (https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/).
A graph has its sizes and addresses from the recording. So tensors stay where they are and are
filled before each replay, a step is padded to the next size, and which adapters compute which rows
is data: addresses in a tensor. What cannot be data runs without a graph: prompts, adapters that do
more than low-rank updates, ranks and contexts beyond what was recorded.

None of this has run on a GPU yet; tests replay on a CPU.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from loraplex.engine.lora_rows import LoraRows
from loraplex.engine.plan import Decodes
from loraplex.kernels.attention import Spans
from loraplex.kernels.segment_buffers import SegmentBuffers
from loraplex.kernels.segments import StepSegments, TableRows
from loraplex.kernels.staging import host_tensor

BUCKETS = (1, 2, 4, 8, 16, 24, 32)
"""Rows of the graphs. Larger steps keep the GPU busy for longer than the host needs."""
MAX_RANK = 64
MAX_KEYS = 8192
"""Launches are sized by what a graph is recorded for, used or not."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded, and where its result lies."""

    replay: Callable[[], None]
    logits: Tensor
    """``[rows, vocab]``, rewritten by each replay."""


Record = Callable[[Callable[[], Tensor]], Recorded]
"""Notes what a function has the device do, to be done again on the same tensors."""


class AttentionBuffers(Protocol):
    """Metadata of attention whose tensors stay where they are."""

    @property
    def step(self) -> Any:  # noqa: ANN401  each implementation has its own
        """What layers read."""
        ...

    def fill(self, spans: Spans) -> None:
        """Let ``step`` hold these spans of one row each. Raises ValueError if they do not fit."""
        ...


@runtime_checkable
class RecordableAttention(Protocol):
    """Attention that can be part of a graph."""

    def buffers(self, max_rows: int, max_keys: int) -> AttentionBuffers:
        """Room for so many decodes of so many positions; empty."""
        ...


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """What the forward pass of a graph reads, for so many rows."""

    ids_and_positions: Tensor
    """``[2, rows]`` int64."""
    rows: Tensor
    """``[rows]`` int64: all."""
    attention: AttentionBuffers
    segments: SegmentBuffers | None
    """None in graphs of the base model alone."""

    @property
    def num_rows(self) -> int:
        """Rows of the graph; a step may have fewer."""
        return len(self.rows)

    @property
    def lora(self) -> LoraRows:
        """Whatever adapters the segments hold."""
        located = None if self.segments is None else self.segments.step
        return LoraRows(self.num_rows, (), located)

    def fill(self, decodes: Decodes, lora: LoraRows) -> None:
        """Hold a step, whose adapters are those of ``lora``. Rows that are left belong to no
        sequence and no adapter: their keys and values are written nowhere, they attend to nothing.

        Raises:
            ValueError: it does not fit.
        """
        n, device = len(decodes), self.rows.device
        if n > self.num_rows:
            raise ValueError(f"{n} decodes do not fit into a graph of {self.num_rows} rows")
        host = host_tensor(2 * self.num_rows, torch.int64, device).view(2, -1)
        padded = host.numpy()
        padded[0, :n], padded[1, :n], padded[:, n:] = decodes.token_ids, decodes.positions, 0
        self.ids_and_positions.copy_(host, non_blocking=True)
        ones = np.ones(n, np.int64)
        self.attention.fill(Spans(decodes.positions, ones, decodes.block_tables))
        if self.segments is not None:
            self.segments.fill(_table_rows(lora))


@dataclass(frozen=True, slots=True)
class DecodeGraph:
    """Computes steps of at most ``inputs.num_rows`` decodes."""

    inputs: GraphInputs
    recorded: Recorded

    def logits(self, num_rows: int) -> Tensor:
        """Compute the step that ``inputs`` hold; return ``[num_rows, vocab]``, valid until the next
        replay."""
        self.recorded.replay()
        return self.recorded.logits[:num_rows]


@dataclass(frozen=True, slots=True)
class DecodeGraphs:
    """All graphs of one runner."""

    base: tuple[DecodeGraph, ...]
    """By rows, rising; for steps without adapters."""
    adapted: tuple[DecodeGraph, ...]
    """The same for steps with some."""
    max_rank: int
    max_keys: int

    @classmethod
    def record(
        cls,
        new_inputs: Callable[[int, bool], GraphInputs],
        forward: Callable[[GraphInputs], Tensor],
        record: Record,
        limits: tuple[int, int],
        buckets: Sequence[int] = BUCKETS,
    ) -> Iterator["DecodeGraphs"]:
        """Record the largest graphs first, so that smaller ones find their memory there; yield
        what there is after each.

        Args:
            new_inputs: of so many rows, for adapters too or not; empty.
            forward: computes inputs into ``[rows, vocab]``.
            record: of the device.
            limits: largest rank and number of keys that ``new_inputs`` make room for.
            buckets: rows, rising.
        """
        found: dict[bool, tuple[DecodeGraph, ...]] = {False: (), True: ()}
        for num_rows in reversed(buckets):
            for is_adapted in (False, True):
                inputs = new_inputs(num_rows, is_adapted)
                graph = DecodeGraph(inputs, record(lambda inputs=inputs: forward(inputs)))  # type: ignore[misc]  # of a default
                found[is_adapted] = (graph, *found[is_adapted])
                yield cls(found[False], found[True], *limits)

    def fitting(self, decodes: Decodes, lora: LoraRows) -> DecodeGraph | None:
        """The smallest graph that can compute a step without prompts; None if it runs without."""
        if not self.serves(lora) or int(decodes.positions.max()) >= self.max_keys:
            return None
        graphs = self.adapted if lora.adapters else self.base
        return next((g for g in graphs if g.inputs.num_rows >= len(decodes)), None)

    def serves(self, lora: LoraRows) -> bool:
        """True if all that the adapters do is data of a graph."""
        if not lora.adapters:
            return True
        return (
            isinstance(lora.located, StepSegments)
            and not lora.changing
            and not lora.vocab_size
            and not any(rows.weights.parameters for rows in lora.adapters)
            and int(lora.located.max_ranks.max()) <= self.max_rank
        )


def _table_rows(lora: LoraRows) -> list[TableRows]:
    return [
        TableRows(start, end, weights.table)
        for start, end, weights in lora.adapters
        if weights.table is not None
    ]


class CudaRecorder:
    """Records CUDA graphs that share their memory: only one is replayed at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> Recorded:
        """Compute once, so that kernels are compiled and libraries have what they keep, and once
        more to record it."""
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types here
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            compute()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = compute()
        return Recorded(graph.replay, logits)
