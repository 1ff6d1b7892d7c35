"""The definition that every implementation of ``paged_attention`` is tested against."""

from collections.abc import Sequence

import torch
from torch import Tensor

from loraplex.kernels.attention import KvCache, Scoring
from loraplex.kernels.attention_plan import Span


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
