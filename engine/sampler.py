"""Draws the next token of each row. A row's token depends on its logits and spec alone.

All rows are drawn together where their logits are. Arithmetic is in float64: what the batch around
a row or the kind of device can change there is some 1e-16 of a probability, so a seed gives the
same tokens alone and in any batch. Greedy rows without other options cost one maximum.

Logits are processed in this order, as in vLLM's sampler
(https://docs.vllm.ai/en/latest/design/logits_processors.html) and transformers' `generate`:

1. Forbidden tokens: −∞ (`min_tokens`).
2. `logit_bias`: added.
3. `repetition_penalty` r (https://arxiv.org/abs/1909.05858), as transformers'
   `RepetitionPenaltyLogitsProcessor`: the logit of a token of prompt or output is divided by r
   where it is positive and multiplied by r where it is negative.
4. `frequency_penalty` f and `presence_penalty` p, as OpenAI's: a token that came c > 0 times in the
   output loses f · c + p.
5. Temperature 0 ends here, with the largest logit, the lowest id among equals; others divide.
6. `top_k`: the k most likely.
7. `top_p` (https://arxiv.org/abs/1904.09751): of these the fewest that hold the share p.
8. `min_p` (https://arxiv.org/abs/2407.01082): of these all that are at least p times as likely as
   the most likely.

Log-probabilities are those of the model: before all of this.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from loraplex.engine.plan import Logprobs
from loraplex.engine.sampling_rows import (
    MAX_TOP_LOGPROBS,
    Counted,
    Drawn,
    Filtered,
    Marked,
    SamplingRows,
)


@dataclass(frozen=True, slots=True)
class SampledRows:
    """What was drawn, row by row."""

    token_ids: list[int | None]
    """None for a row whose logits held NaN, +∞, or nothing but −∞ and forbidden tokens."""
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    """By row, for those that ask for them."""


def sample(logits: Tensor, options: SamplingRows) -> SampledRows:
    """Draw one token per row of `logits` [rows, vocab], float32. −∞ forbids a token."""
    maxima, drawn = logits.max(dim=-1)  # NaN wins over every number
    is_finite = torch.isfinite(maxima)
    if options.rows is not None:
        scores = logits[options.rows].double()
        _edit(scores, options)
        maxima, chosen = scores.max(dim=-1)
        is_finite[options.rows] &= torch.isfinite(maxima)
        if options.drawn is not None:
            chosen[options.drawn.rows] = _draw(scores, options.drawn)
        drawn[options.rows] = chosen
    token_ids = [
        token_id if finite else None
        for token_id, finite in zip(drawn.tolist(), is_finite.tolist(), strict=True)
    ]
    return SampledRows(token_ids, _logprobs(logits, drawn, options))


def _edit(scores: Tensor, options: SamplingRows) -> None:
    """Apply steps 1 to 4 in place."""
    if options.forbidden is not None:
        scores[options.forbidden.rows, options.forbidden.ids] = -torch.inf
    if options.bias is not None:
        scores[options.bias.rows, options.bias.ids] += options.bias.values
    if options.repeated is not None:
        _penalise_repetition(scores, options.repeated)
    if options.counted is not None:
        _penalise_counts(scores, options.counted)


def _penalise_repetition(scores: Tensor, repeated: Marked) -> None:
    # A token that is marked twice is written twice, with the same value.
    found, penalty = scores[repeated.rows, repeated.ids], repeated.values
    scores[repeated.rows, repeated.ids] = torch.where(found < 0, found * penalty, found / penalty)


def _penalise_counts(scores: Tensor, counted: Counted) -> None:
    counts = scores.new_zeros(len(counted.rows), scores.shape[1])
    outputs = counted.outputs
    counts.index_put_((outputs.rows, outputs.ids), outputs.values, accumulate=True)
    lost = counted.frequency * counts + counted.presence * (counts > 0)
    scores[counted.rows] -= lost


def _draw(scores: Tensor, drawn: Drawn) -> Tensor:
    """Steps 5 to 8, then a token by chance for each drawn row: [d] int64."""
    left = scores[drawn.rows]
    if drawn.top_k is not None:
        _keep_top_k(left, drawn.top_k, drawn.max_top_k)
    # The largest weight of a row is 1, so that nothing overflows.
    weights = ((left - left.max(dim=-1, keepdim=True).values) / drawn.temperature).exp_()
    if drawn.top_p is not None:
        _keep_top_p(weights, drawn.top_p)
    if drawn.min_p is not None:
        rows = weights[drawn.min_p.rows]
        weights[drawn.min_p.rows] = rows.masked_fill_(rows < drawn.min_p.values, 0)
    return _invert(weights, drawn.uniform)


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Places at which the cumulative distributions reach the uniform numbers."""
    cumulative = weights.cumsum(dim=-1)
    whole = cumulative[:, -1:].contiguous()
    # The first sum beyond; should the product be rounded up to the whole, the last that grew.
    beyond = torch.searchsorted(cumulative, uniform * whole, right=True)
    last = torch.searchsorted(cumulative, whole)
    places = torch.minimum(beyond, last).squeeze(1)
    return places.clamp_(max=weights.shape[1] - 1)  # rows of NaN, which are dropped later


def _keep_top_k(scores: Tensor, top_k: Filtered, max_top_k: int) -> None:
    """Set all but each row's k largest to −∞."""
    found = scores[top_k.rows]
    k = top_k.values.clamp(max=found.shape[1])
    largest = found.topk(min(max_top_k, found.shape[1]), dim=-1).values
    keep = _largest(found, largest.gather(1, k - 1), k)
    scores[top_k.rows] = found.masked_fill_(~keep, -torch.inf)


def _keep_top_p(weights: Tensor, top_p: Filtered) -> None:
    """Set all but the fewest weights that hold each row's share to 0."""
    found, share = weights[top_p.rows], top_p.values
    whole = found.sum(dim=-1, keepdim=True)
    # Weights below this hold less than 1 - p together, so the nucleus does without them, and few
    # are left to sort. Half of it, against rounding.
    floor = 0.5 * (1 - share) * whole / found.shape[1]
    num_sorted = max(1, int((found >= floor).sum(dim=-1).max()))
    descending = found.topk(num_sorted, dim=-1).values
    before = (descending.cumsum(dim=-1) < share * whole).sum(dim=-1, keepdim=True)
    last = before.clamp_(max=num_sorted - 1)
    keep = _largest(found, descending.gather(1, last), last + 1)
    weights[top_p.rows] = found.masked_fill_(~keep, 0)


def _largest(values: Tensor, smallest: Tensor, count: Tensor) -> Tensor:
    """Mask of each row's `count` largest, of which one is `smallest`; among equals the first."""
    above, equal = values > smallest, values == smallest
    room = count - above.sum(dim=-1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=-1) <= room))


def _logprobs(logits: Tensor, drawn: Tensor, options: SamplingRows) -> dict[int, Logprobs]:
    if options.reported is None:
        return {}
    found = logits[options.reported].double().log_softmax(dim=-1)
    of_drawn = found.gather(1, drawn[options.reported].unsqueeze(1)).squeeze(1).tolist()
    values, ids = found.topk(min(MAX_TOP_LOGPROBS, found.shape[1]), dim=-1)
    tops = zip(ids.tolist(), values.tolist(), strict=True)
    rows = options.reported.tolist()
    return {
        row: Logprobs(value, _ordered(top)[:num])
        for row, value, top, num in zip(rows, of_drawn, tops, options.num_top_logprobs, strict=True)
    }


def _ordered(top: tuple[list[int], list[float]]) -> tuple[tuple[int, float], ...]:
    """Most likely first, the lowest id among equals."""
    return tuple(sorted(zip(*top, strict=True), key=lambda pair: (-pair[1], pair[0])))
