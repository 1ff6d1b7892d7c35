"""Which implementation of attention computes a model."""

from collections.abc import Collection
from typing import Any

import torch

from loraplex.kernels.attention import Attention, KvLayout, LayerForm
from loraplex.kernels.attention_torch import TorchAttention
from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.kernels.paged_step import PagedLayout


def choose_attention(
    layout: KvLayout,
    layers: Collection[LayerForm],
    *,
    dtype: torch.dtype,
    device: torch.device,
    kernels: CpuKernels | None,
) -> Attention[Any]:
    """Return the fastest implementation that can compute the model here.

    Args:
        layout: of the pool that block tables will point into.
        layers: of the model; equal ones may be left out.
        dtype: of queries, keys and values, and of the pool.
        device: where they are.
        kernels: compiled for this processor, if they are.
    """
    if device.type == "cpu" and kernels is not None and kernels.attention.supports(dtype):
        return kernels.attention
    if device.type == "cuda":
        from loraplex.kernels.attention_paged import paged_attention  # noqa: PLC0415  CPUs need no Triton

        paged = paged_attention(PagedLayout(layout.block_size, device), layers, dtype)
        if paged is not None:
            return paged
    windows = frozenset(layer.window for layer in layers)
    return TorchAttention(layout, windows, dtype, device)
