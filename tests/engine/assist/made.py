"""Adapters that were made up, whose copies on the host other processes can map."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from loraplex.adapters.packed_pairs import PackedPairs
from loraplex.adapters.pair_layout import PairLayout
from loraplex.adapters.shared_pages import SharedPages
from loraplex.adapters.weights import VerifiedAdapter
from loraplex.engine.assist.host_assist import HostAssist
from loraplex.engine.assist.watch import Watch

SPELLED = MappingProxyType({torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"})
READY_S = 60.0
"""A busy machine may take a while to start a process."""


def make(
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
        layers=(),
        runs=(),
        num_elements=end,
    )
    shared = SharedPages.of(end, dtype) if is_shared else None
    data = torch.empty(end, dtype=dtype) if shared is None else shared.data
    data.copy_(torch.randn(end, generator=torch.Generator().manual_seed(seed)) / 8)
    pairs = PackedPairs(layout, data, transposes_b, shared)
    return VerifiedAdapter(cast("Any", None), pairs, MappingProxyType({}))


def linears_of(shapes: Mapping[str, tuple[int, int, int]]) -> dict[str, tuple[int, int]]:
    return {path: (out, width) for path, (out, width, _) in shapes.items()}


def expected(adapter: VerifiedAdapter, path: str, x: Tensor) -> Tensor:
    """What a layer's update is, in float64."""
    pair = adapter.pairs[path]
    return pair.scale * (x.double() @ pair.a.double().T @ pair.b.double().T)


@contextmanager
def assisting(
    linears: Mapping[str, tuple[int, int]],
    num: int,
    min_backoff_s: float = 0.01,
    min_patience_s: float = 60.0,
    late_s: float = 0.0,
) -> Iterator[tuple[HostAssist, Watch]]:
    """Processes that are ready; several may share a core here."""
    cores = sorted(os.sched_getaffinity(0))[::-1]
    watch = Watch([cores[n % len(cores)] for n in range(num)], min_backoff_s, late_s)
    assist = HostAssist(linears, watch, min_patience_s)
    try:
        assert watch.wait_ready(READY_S)
        yield assist, watch
    finally:
        assist.close()
