"""Adapters that were made up, whose copies on the host other processes can map."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from mmap import mmap
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from loraplex.adapters.packed_pairs import PackedPairs
from loraplex.adapters.pair_layout import Layer, PairLayout
from loraplex.adapters.weights import VerifiedAdapter
from loraplex.engine.assist.host_assist import HostAssist
from loraplex.engine.assist.watch import Watch

SPELLED = MappingProxyType({torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"})
READY_S = 60.0
"""A busy machine may take a while to start a process."""


class SharedAdapters:
    """Makes them, and knows the files that they lie in."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}

    def make(
        self,
        shapes: Mapping[str, tuple[int, int, int]],
        dtype: torch.dtype = torch.float32,
        *,
        transposes_b: bool = False,
        seed: int = 0,
        is_shared: bool = True,
    ) -> VerifiedAdapter:
        """Random pairs of ``shapes``: path to (out, in, rank)."""
        starts, end = [], 16
        for out, width, rank in shapes.values():
            starts.append((end, end + rank * width))
            end += rank * (width + out)
        layout = PairLayout(
            dtype=SPELLED[dtype],
            number_of=MappingProxyType({path: number for number, path in enumerate(shapes)}),
            shapes=np.array([*shapes.values()], np.int64).reshape(-1, 3),
            starts=np.array(starts, np.int64).reshape(-1, 2),
            scales=np.linspace(0.5, 2.0, len(shapes)),
            layers=(Layer(tuple(shapes), end),),
            runs=(),
        )
        data = self._memory(end, dtype) if is_shared else torch.empty(end, dtype=dtype)
        data.copy_(torch.randn(end, generator=torch.Generator().manual_seed(seed)) / 8)
        pairs = PackedPairs(layout, data, transposes_b)
        return VerifiedAdapter(cast("Any", None), pairs, MappingProxyType({}))

    def file_of(self, adapter: VerifiedAdapter) -> int | None:
        return self._files.get(adapter.pairs.data.data_ptr())

    def _memory(self, num_elements: int, dtype: torch.dtype) -> Tensor:
        file = os.memfd_create("adapter")
        os.truncate(file, num_elements * dtype.itemsize)
        data = torch.frombuffer(mmap(file, num_elements * dtype.itemsize), dtype=dtype)
        self._files[data.data_ptr()] = file
        return data

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)


def linears_of(shapes: Mapping[str, tuple[int, int, int]]) -> dict[str, tuple[int, int]]:
    return {path: (out, width) for path, (out, width, _) in shapes.items()}


def expected(adapter: VerifiedAdapter, path: str, x: Tensor) -> Tensor:
    """What a layer's update is, in float64."""
    pair = adapter.pairs[path]
    return pair.scale * (x.double() @ pair.a.double().T @ pair.b.double().T)


@contextmanager
def assisting(
    adapters: SharedAdapters,
    linears: Mapping[str, tuple[int, int]],
    num: int,
    min_backoff_s: float = 0.01,
    min_patience_s: float = 60.0,
) -> Iterator[tuple[HostAssist, Watch]]:
    """Processes that are ready; several may share a core here."""
    cores = sorted(os.sched_getaffinity(0))[::-1]
    watch = Watch([cores[n % len(cores)] for n in range(num)], min_backoff_s)
    assist = HostAssist(linears, watch, adapters.file_of, min_patience_s)
    try:
        assert watch.wait_ready(READY_S)
        yield assist, watch
    finally:
        assist.close()
