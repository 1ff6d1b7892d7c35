"""The definition that every implementation of ``Attention`` is tested against."""

from collections.abc import Sequence

import torch
from torch import Tensor

from loraplex.kernels.attention import KvCache, Scoring, Span


def paged_attention_reference(
    q: Tensor, cache: KvCache, spans: Sequence[Span], scoring: Scoring
) -> Tensor:
    """Attend row by row, with sums in float64, over a cache that holds the step already.

    Args:
        q: ``[rows, heads, key_dim]``.
        cache: with the keys and values of this step in their slots.
        spans: of all rows, in order.
        scoring: of the layer.

    Returns:
        ``[rows, heads, value_dim]``, float64.
    """
    scaling, window, softcap = scoring
    block_size, kv_heads = cache.keys.shape[1:3]
    group = q.shape[1] // kv_heads
    rows: list[Tensor] = []
    for span in spans:
        for position in range(span.start, span.start + span.length):
            first = 0 if window is None else max(0, position - window + 1)
            seen = range(first, position + 1)
            slots = [(span.block_table[p // block_size], p % block_size) for p in seen]
            keys = torch.stack([cache.keys[slot] for slot in slots]).double()  # [seen, kv_heads, d]
            values = torch.stack([cache.values[slot] for slot in slots]).double()
            query = q[len(rows)].double()
            heads: list[Tensor] = []
            for head in range(q.shape[1]):
                scores = scaling * keys[:, head // group] @ query[head]
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                heads.append(torch.softmax(scores, dim=0) @ values[:, head // group])
            rows.append(torch.stack(heads))
    return torch.stack(rows)


def dense_attention_reference(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
    """Attend all rows of one sequence, with sums in float64 and without a cache.

    Args:
        q: ``[rows, heads, key_dim]``; row ``i`` is at position ``i``.
        k: ``[rows, kv_heads, key_dim]``.
        v: ``[rows, kv_heads, value_dim]``.
        scoring: of the layer.

    Returns:
        ``[rows, heads, value_dim]``, in the dtype of ``q``.
    """
    scaling, window, softcap = scoring
    group = q.shape[1] // k.shape[1]
    queries, keys, values = (
        t.double().transpose(0, 1)
        for t in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))
    )
    scores = scaling * queries @ keys.transpose(1, 2)  # [heads, rows, rows]
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    places = torch.arange(len(q), device=q.device)
    ahead = places[None] - places[:, None]
    hidden = ahead > 0 if window is None else (ahead > 0) | (ahead <= -window)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return (weights @ values).transpose(0, 1).to(q.dtype)
