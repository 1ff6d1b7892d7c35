"""Segments of steps that a captured graph computes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from loraplex.kernels.segments import FEW_ROWS, StepSegments, TableRows, cut_into_chunks
from loraplex.kernels.staging import host_tensor


@dataclass(frozen=True, slots=True)
class SegmentBuffers:
    """A step's segments with room for the largest step, rewritten before each replay of a graph.

    Capture layers with ``step``; then, for every step, ``fill`` and replay.  Adapters are run-time
    data: a graph serves any of them, in any rows.  The caller holds the tables of a step until the
    device has computed it.
    """

    step: StepSegments
    """Its tensors stay where they are."""

    @classmethod
    def of(
        cls,
        num_modules: int,
        max_rows: int,
        max_rank: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "SegmentBuffers":
        """Return room that is not used yet.

        Args:
            num_modules: of each table.
            max_rows: of a step.
            max_rank: of an adapter; launches are sized by it, and programs beyond an adapter's own
                rank end at once.
            dtype: of all weights.
            device: of the model.
        """
        return cls(
            StepSegments(
                chunks=torch.zeros(max_rows, 3, dtype=torch.int64, device=device),
                chunk_rows=FEW_ROWS,
                end=max_rows,
                max_ranks=np.full(num_modules, max_rank),
                touches=np.ones(num_modules, np.bool_),
                dtype=dtype,
                tables=(),
            )
        )

    def fill(self, rows: Sequence[TableRows]) -> None:
        """Let ``step`` hold these rows; room that is left does nothing.

        The copy is queued on the current stream, so what was launched there before still sees the
        step before.  A graph would not notice that it was captured for less: it is checked here
        (https://github.com/sgl-project/sglang/pull/28371 is what happens otherwise).

        Args:
            rows: not overlapping; none if all are the base model's.

        Raises:
            ValueError: there are more rows, or larger ranks, than there is room for, or weights of
                another dtype.
        """
        chunks, room = cut_into_chunks(rows, FEW_ROWS), self.step.chunks
        end = max((segment.end for segment in rows), default=0)
        rank = max((int(segment.table.ranks.max()) for segment in rows), default=0)
        max_rank = int(self.step.max_ranks.max())
        if end > self.step.end or len(chunks) > len(room) or rank > max_rank:
            raise ValueError(
                f"{len(chunks)} chunks up to row {end}, of ranks up to {rank}, do not fit into"
                f" buffers for {len(room)} rows of ranks up to {max_rank}: run the step without a"
                " graph"
            )
        if any(segment.table.dtype is not self.step.dtype for segment in rows):
            raise ValueError(f"buffers are for weights in {self.step.dtype}")
        host = host_tensor(room.numel(), torch.int64, room.device).view(room.shape)
        padded = host.numpy()
        padded[: len(chunks)], padded[len(chunks) :] = chunks, 0
        room.copy_(host, non_blocking=True)
