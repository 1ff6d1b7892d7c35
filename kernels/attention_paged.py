"""Attention on a GPU over pages where they lie: by Triton, or by torch where it has a kernel."""

import importlib.util
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from loraplex.kernels.attention import KvCache, LayerForm, Scoring, Spans
from loraplex.kernels.attention_triton import MAX_DIM, MAX_GROUP, attend_triton, store_kv_triton
from loraplex.kernels.paged_step import DecodeBuffers, PagedLayout, PagedStep

VarlenAttn = Callable[..., object]
"""``torch.nn.attention.varlen.varlen_attn_out``, or what does the same."""


@dataclass(frozen=True, slots=True)
class TritonAttention:
    """Implements ``Attention`` by Triton's kernels; see ``attend_triton``."""

    layout: PagedLayout

    def plan(self, spans: Spans) -> PagedStep:
        """Lay out a step; see ``Attention``."""
        return self.layout.step(spans)

    def buffers(self, max_rows: int, max_keys: int) -> DecodeBuffers:
        """Return metadata for a graph of decodes; see ``PagedLayout.buffers``."""
        return self.layout.buffers(max_rows, max_keys)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KvCache, metadata: PagedStep, scoring: Scoring
    ) -> Tensor:
        """Attend the rows of one layer; see ``Attention``.  Rows of no span become 0."""
        store_kv_triton(cache, k, v, metadata.slots)
        out = q.new_zeros(*q.shape[:2], v.shape[-1])
        attend_triton(out, q, cache, metadata, scoring)
        return out


@dataclass(frozen=True, slots=True)
class VarlenAttention:
    """Implements ``Attention`` by torch's FlashAttention 3; see ``varlen_attn_of``.

    Keys are never split between programs, so that a row's bits do not depend on the other rows.
    """

    layout: PagedLayout
    varlen_attn: VarlenAttn

    def plan(self, spans: Spans) -> PagedStep:
        """Lay out a step; see ``Attention``."""
        return self.layout.step(spans)

    def buffers(self, max_rows: int, max_keys: int) -> DecodeBuffers:
        """Return metadata for a graph of decodes; see ``PagedLayout.buffers``."""
        return self.layout.buffers(max_rows, max_keys)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KvCache, metadata: PagedStep, scoring: Scoring
    ) -> Tensor:
        """Attend the rows of one layer; see ``Attention``.  Rows of no span become 0."""
        store_kv_triton(cache, k, v, metadata.slots)
        out = q.new_zeros(*q.shape[:2], v.shape[-1])
        self.varlen_attn(
            *(out, q, cache.keys, cache.values, metadata.first_rows, None),
            *(metadata.most.rows, metadata.most.keys),
            scale=scoring.scaling,
            # Its windows count the positions to the left, ours a token itself as well.
            window_size=(-1 if scoring.window is None else scoring.window - 1, 0),
            enable_gqa=True,
            seqused_k=metadata.num_keys,
            block_table=metadata.block_tables,
            num_splits=1,
        )
        return out


def paged_attention(
    layout: PagedLayout, layers: Collection[LayerForm], dtype: torch.dtype
) -> TritonAttention | VarlenAttention | None:
    """Return what computes a model on ``layout.device``, a GPU; None if torch has to.

    Torch's kernel takes a model where it can: in 16 bits, where no scores are capped, keys are as
    wide as values, a multiple of 8 and at most 256.  Triton takes all others with keys and values
    of up to ``MAX_DIM`` and up to ``MAX_GROUP`` heads that share them.
    """
    if any(
        max(form.key_dim, form.value_dim) > MAX_DIM or form.group > MAX_GROUP for form in layers
    ):
        return None
    is_plain = dtype in {torch.bfloat16, torch.float16} and all(
        form.softcap is None and form.key_dim == form.value_dim <= 256 and form.key_dim % 8 == 0
        for form in layers
    )
    varlen_attn = varlen_attn_of(layout.device) if is_plain else None
    return VarlenAttention(layout, varlen_attn) if varlen_attn else TritonAttention(layout)


def varlen_attn_of(device: torch.device) -> VarlenAttn | None:
    """Return torch's attention over block tables, if it has it on this GPU.

    FlashAttention 2, which torch brings, takes no block tables: they need FlashAttention 3
    (https://github.com/pytorch/pytorch/pull/175924), which computes on compute capability 9.0 and
    comes as a package of its own, ``flash_attn_interface``.  Torch's other attention uses it too
    from then on.
    """
    if torch.cuda.get_device_capability(device) != (9, 0):
        return None
    if importlib.util.find_spec("flash_attn_interface") is None:
        return None
    try:
        from torch.nn.attention import activate_flash_attention_impl  # noqa: PLC0415  new in 2.11
        from torch.nn.attention.varlen import varlen_attn_out  # noqa: PLC0415  where it is
    except ImportError:
        return None
    activate_flash_attention_impl("FA3")
    return varlen_attn_out
