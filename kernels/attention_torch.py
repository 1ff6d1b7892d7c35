"""Attention by torch's own ops, on any device: keys and values are gathered from their blocks."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from loraplex.kernels.attention import KvCache, KvLayout, Scoring, Spans, Window
from loraplex.kernels.attention_plan import (
    AttentionMetadata,
    DecodeGroup,
    PrefillChunk,
    plan_attention,
)


@dataclass(frozen=True, slots=True)
class TorchAttention:
    """Implements ``Attention``."""

    layout: KvLayout
    windows: Collection[Window]
    """Of the model's layers."""
    dtype: torch.dtype
    """Of queries, keys and values; masks have it too."""
    device: torch.device

    def plan(self, spans: Spans) -> AttentionMetadata:
        """Lay out a step; see ``Attention``."""
        return plan_attention(
            spans, self.layout, self.windows, dtype=self.dtype, device=self.device
        )

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: KvCache,
        metadata: AttentionMetadata,
        scoring: Scoring,
    ) -> Tensor:
        """Attend the rows of one layer; see ``Attention``."""
        keys, values = cache.keys.flatten(0, 1), cache.values.flatten(0, 1)
        keys.index_copy_(0, metadata.slot_mapping, k)
        values.index_copy_(0, metadata.slot_mapping, v)
        out = q.new_empty(*q.shape[:2], v.shape[-1])
        plan = metadata.plans[scoring.window]
        for group in plan.decodes:
            _attend_decodes(out, q, keys, values, group, scoring)
        for chunk in plan.chunks:
            if chunk.slots is None:
                own = slice(chunk.start, chunk.end)
                _attend_chunk(out, q, k[own], v[own], chunk, scoring)
            else:
                seen_keys = keys.index_select(0, chunk.slots)
                seen_values = values.index_select(0, chunk.slots)
                _attend_chunk(out, q, seen_keys, seen_values, chunk, scoring)
        return out


def _attend_decodes(
    out: Tensor, q: Tensor, keys: Tensor, values: Tensor, group: DecodeGroup, scoring: Scoring
) -> None:
    n, kv_heads = group.rows.shape[0], keys.shape[1]
    seen_keys = keys.index_select(0, group.slots).view(n, -1, *keys.shape[1:])
    seen_values = values.index_select(0, group.slots).view(n, -1, *values.shape[1:])
    # All heads of a KV head see the same positions, so they go as its query rows.
    queries = q.index_select(0, group.rows).view(n, kv_heads, -1, q.shape[-1])
    attended = _attend(
        queries,  # [n, kv_heads, heads / kv_heads, key_dim]
        seen_keys.transpose(1, 2),  # [n, kv_heads, keys, key_dim]
        seen_values.transpose(1, 2),
        group.mask,
        scoring,
    )
    out.index_copy_(0, group.rows, attended.flatten(1, 2))


def _attend_chunk(
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, chunk: PrefillChunk, scoring: Scoring
) -> None:
    queries = q[chunk.start : chunk.end]
    attended = _attend(
        queries.transpose(0, 1)[None],  # [1, heads, rows, key_dim]
        k.transpose(0, 1)[None],  # [1, kv_heads, keys, key_dim]
        v.transpose(0, 1)[None],
        chunk.mask,
        scoring,
    )
    out[chunk.start : chunk.end] = attended[0].transpose(0, 1)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scoring: Scoring) -> Tensor:
    """Attend ``q [n, heads, rows, key_dim]`` to ``k, v [n, kv_heads, keys, dim]``.

    ``mask`` is added to the scores and broadcasts to ``[n, heads, rows, keys]``; None is causal,
    of as many rows as keys.  Returns ``[n, heads, rows, value_dim]``.
    """
    if scoring.softcap is not None:
        return _attend_capped(q, k, v, mask, scoring.scaling, scoring.softcap)
    return scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scoring.scaling,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _attend_capped(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, softcap: float
) -> Tensor:
    """The same with scores written out, since torch's attention takes no function of them.

    It needs ``heads * rows * keys`` floats a sequence, where the other needs none.
    """
    n, kv_heads, num_keys = k.shape[:3]
    rows = q.shape[2]
    queries = q.reshape(n, kv_heads, -1, q.shape[-1])  # heads of one KV head, one below the other
    scores = (queries.float() @ k.float().transpose(2, 3)) * (scaling / softcap)
    scores = (scores.tanh_() * softcap).view(n, q.shape[1], rows, num_keys)
    if mask is None:
        hidden = torch.ones(rows, num_keys, dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(hidden, float("-inf"))
    else:
        scores += mask
    weights = scores.softmax(dim=-1).view(n, kv_heads, -1, num_keys)
    return (weights @ v.float()).view(*q.shape[:3], v.shape[-1]).to(q.dtype)
