"""Draws the next token of each row. A row's token depends on its logits and spec alone.

Rows are drawn together where their logits are; on a CPU as many at a time as its cache holds.
Probabilities are float64: what the batch around a row or the kind of device can change there is
some 1e-16 of them, so a seed gives the same tokens alone and in any batch. Greedy rows without
other options cost one maximum.

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

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loraplex.engine.plan import Logprobs
from loraplex.engine.sampling_rows import Drawn, Edits, Filters, Group, SamplingRows

MAX_TOP_LOGPROBS = 20
"""What OpenAI's clients may ask for. All rows are searched for this many, so that ties between
equals are decided alike whatever the others of the batch ask for."""


@dataclass(frozen=True, slots=True)
class SampledRows:
    """What was drawn, row by row."""

    token_ids: NDArray[np.int64]
    """[rows]; of those that failed any number."""
    failed: tuple[int, ...] = ()
    """Rows whose logits held NaN, +∞, or nothing but −∞ and forbidden tokens."""
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    """By row, for those that ask for them."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What was drawn, where the logits are: `read` waits for it."""

    token_ids: Tensor
    """[rows] int64."""
    maxima: Tensor
    """[rows] float32: what a row's token was the largest of, or NaN or infinite where it failed."""
    logprobs: "_Found | None"
    """Of the rows that ask for them."""

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Draw":
        """The same elsewhere."""
        found = self.logprobs
        if found is not None:
            found = _Found(move(found.of_drawn), move(found.values), move(found.ids))
        return Draw(move(self.token_ids), move(self.maxima), found)


@dataclass(frozen=True, slots=True)
class _Found:
    """Log-probabilities of r rows, float64."""

    of_drawn: Tensor
    """[r]"""
    values: Tensor
    """[r, k]: the largest, in descending order; `ids` are their tokens."""
    ids: Tensor


NOTHING_DRAWN = Draw(torch.zeros(0, dtype=torch.int64), torch.zeros(0), None)
"""Of no rows."""


def sample(logits: Tensor, options: SamplingRows) -> SampledRows:
    """Draw one token per row of `logits` [rows, vocab], float32. −∞ forbids a token."""
    return read(draw(logits, options), options)


def draw(logits: Tensor, options: SamplingRows) -> Draw:
    """The same, without waiting for a device, but where `top_p` or `min_p` ask how many tokens are
    left; `logits` may change after it."""
    maxima, token_ids = _largest_of(logits)
    for group in options.groups:
        maxima[group.rows], token_ids[group.rows] = _sample_group(logits, maxima, group)
    return Draw(token_ids, maxima, _logprobs(logits, token_ids, options.reported))


def read(drawn: Draw, options: SamplingRows) -> SampledRows:
    """What was drawn with these options."""
    is_finite = np.isfinite(drawn.maxima.cpu().numpy())
    failed = () if is_finite.all() else tuple((~is_finite).nonzero()[0].tolist())
    logprobs = {} if drawn.logprobs is None else _told(drawn.logprobs, options)
    return SampledRows(drawn.token_ids.cpu().numpy(), failed, logprobs)


def _largest_of(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's largest score, and the lowest id that has it: both [rows]. NaN wins over all."""
    if scores.device.type != "cpu":
        largest = scores.max(dim=-1)
        return largest.values, largest.indices
    # NumPy looks for them with vector instructions, ten times faster than torch.
    token_ids = torch.from_numpy(scores.numpy().argmax(axis=-1))
    return scores.gather(1, token_ids.unsqueeze(1)).squeeze(1), token_ids


def _sample_group(logits: Tensor, maxima: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """The largest logit after step 4, not finite if it was not before, and a token: both [g]."""
    scores, largest = logits[group.rows], maxima[group.rows]
    token_ids = group.rows  # of the right shape; without edits all are drawn
    if group.edits is not None:
        _edit(scores, group.edits)
        after, token_ids = _largest_of(scores)
        largest = torch.where(torch.isfinite(largest), after, largest)
    if group.drawn is not None:
        token_ids = _draw(scores, largest.unsqueeze(1), group.drawn)
    return largest, token_ids


def _edit(scores: Tensor, edits: Edits) -> None:
    """Steps 1 to 4, in place."""
    if (forbidden := edits.forbidden) is not None:
        scores[forbidden.rows, forbidden.ids] = forbidden.values
    if (bias := edits.bias) is not None:
        scores[bias.rows, bias.ids] += bias.values
    if (repeated := edits.repeated) is not None:
        # A token that is marked twice is written twice, with the same value.
        found, penalty = scores[repeated.rows, repeated.ids], repeated.values
        changed = torch.where(found < 0, found * penalty, found / penalty)
        scores[repeated.rows, repeated.ids] = changed
    if (counted := edits.counted) is not None:
        scores[counted.rows, counted.ids] -= counted.values


def _draw(scores: Tensor, largest: Tensor, drawn: Drawn) -> Tensor:
    """Steps 5 to 8 and a token by chance for each row of `scores` [d, vocab]: [d] int64."""
    if drawn.filters is None:
        weights = _weights(scores, largest, drawn.temperature)
        return _invert(weights.cumsum_(dim=-1), drawn.uniform)
    ids, cumulative = _candidates(scores, largest, drawn, drawn.filters)
    return ids.gather(1, _invert(cumulative, drawn.uniform).unsqueeze(1)).squeeze(1)


def _weights(scores: Tensor, largest: Tensor, temperature: Tensor) -> Tensor:
    """Probabilities up to a factor of each row, in float64: the largest is 1, none overflows."""
    return (scores.double() - largest).div_(temperature).exp_()


def _candidates(
    scores: Tensor, largest: Tensor, drawn: Drawn, filters: Filters
) -> tuple[Tensor, Tensor]:
    """What the filters leave of each row, most likely first: ids and running sums of weights, both
    [d, m]. Beyond what is left the sums stay."""
    vocab_size = scores.shape[1]
    whole = None
    if filters.max_top_k is not None:
        num_candidates = min(filters.max_top_k, vocab_size)
    else:
        weights = _weights(scores, largest, drawn.temperature)
        whole = weights.sum(dim=-1, keepdim=True)
        # Weights below this hold less than 1 - p together, so the nucleus does without them, and
        # few are left to sort. Half of it, against rounding.
        floor = (0.5 * (1 - filters.top_p) * whole / vocab_size).maximum(filters.min_p)
        num_candidates = max(1, int((weights >= floor).sum(dim=-1).max()))
    ids = _most_likely(scores, num_candidates)
    weights = _weights(scores.gather(1, ids), largest, drawn.temperature)
    places = torch.arange(num_candidates, device=scores.device)
    weights.masked_fill_(places >= filters.top_k, 0)
    cumulative = weights.cumsum(dim=-1)
    if whole is None:
        whole = cumulative[:, -1:]
    in_nucleus = cumulative - weights < filters.top_p * whole
    kept = in_nucleus & (weights >= filters.min_p) | (places == 0)
    return ids, weights.masked_fill_(~kept, 0).cumsum(dim=-1)


def _most_likely(scores: Tensor, count: int) -> Tensor:
    """Ids of each row's `count` largest, in order, the lowest id first among equals: [d, count].

    A score's bits, of a negative one all but the sign turned round, order as integers as the scores
    do; below them the id makes every key another.
    """
    vocab_size = scores.shape[1]
    bits = (scores + 0.0).view(torch.int32)  # −0 is 0
    ordered = (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits).long()
    ordered = ordered.bitwise_left_shift_(32)
    ordered += torch.arange(vocab_size - 1, -1, -1, device=scores.device)
    return (vocab_size - 1) - (_largest(ordered, count) & 0xFFFFFFFF)


def _largest(keys: Tensor, count: int) -> Tensor:
    """Each row's `count` largest integers, in descending order: [d, count]."""
    if keys.device.type != "cpu":
        return keys.topk(count, dim=-1).values
    # NumPy sorts integers with vector instructions, several times faster than torch's topk.
    found = np.partition(keys.numpy(), -count, axis=1)[:, -count:]
    return torch.from_numpy(np.sort(found, axis=1)[:, ::-1].copy())


def _invert(cumulative: Tensor, uniform: Tensor) -> Tensor:
    """Places at which running sums [d, m] reach their share `uniform` [d, 1] of the whole: [d]."""
    whole = cumulative[:, -1:].contiguous()
    # The first sum beyond; should the product be rounded up to the whole, the last that grew.
    beyond = torch.searchsorted(cumulative, uniform * whole, right=True)
    places = torch.minimum(beyond, torch.searchsorted(cumulative, whole)).squeeze(1)
    return places.clamp_(max=cumulative.shape[1] - 1)  # of NaN, which is dropped later


def _logprobs(logits: Tensor, drawn: Tensor, rows: Tensor | None) -> _Found | None:
    if rows is None:
        return None
    found = logits[rows].double().log_softmax(dim=-1)
    of_drawn = found.gather(1, drawn[rows].unsqueeze(1)).squeeze(1)
    return _Found(of_drawn, *found.topk(min(MAX_TOP_LOGPROBS, found.shape[1]), dim=-1))


def _told(found: _Found, options: SamplingRows) -> dict[int, Logprobs]:
    assert options.reported is not None
    tops = zip(found.ids.tolist(), found.values.tolist(), strict=True)
    told = zip(
        options.reported.tolist(),
        found.of_drawn.tolist(),
        tops,
        options.num_top_logprobs,
        strict=True,
    )
    return {row: Logprobs(value, _ordered(top)[:num]) for row, value, top, num in told}


def _ordered(top: tuple[list[int], list[float]]) -> tuple[tuple[int, float], ...]:
    """Most likely first, the lowest id among equals."""
    return tuple(sorted(zip(*top, strict=True), key=lambda pair: (-pair[1], pair[0])))
