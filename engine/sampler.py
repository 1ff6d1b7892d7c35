"""Draws the next token of each row. A row's token depends on its logits and spec alone.

Rows are drawn one by one on the host, so that neither the batch around a row nor the device that
made its logits can change a rounding. Greedy rows never leave the device.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from loraplex.engine.plan import SampleSpec

Floats: TypeAlias = npt.NDArray[np.float32]
Indices: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampledRows:
    """What was drawn, row by row."""

    token_ids: list[int | None]
    """None for a row whose logits held NaN, +∞, or nothing but −∞."""


def sample(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> SampledRows:
    """Draw one token per row of `logits` [rows, vocab], float32. −∞ forbids a token.

    Temperature 0 takes the largest logit, the lowest id among equals. Otherwise temperature, then
    `top_k`, then `top_p` of what is left.
    """
    maxima, argmaxima = logits.max(dim=-1)  # NaN wins over every number
    token_ids: list[int | None] = argmaxima.tolist()
    is_finite = torch.isfinite(maxima).tolist()
    drawn = [row for row, spec in enumerate(specs) if spec.temperature > 0 and is_finite[row]]
    if drawn:
        on_host = logits[drawn].cpu().numpy()
        for row, values in zip(drawn, on_host, strict=True):
            token_ids[row] = _draw(values, specs[row])
    for row, finite in enumerate(is_finite):
        if not finite:
            token_ids[row] = None
    return SampledRows(token_ids)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), a pure function of seed (modulo 2⁶⁴) and position: 53 bits of a hash."""
    message = struct.pack("<QQ", seed % 2**64, position)
    digest = blake2b(message, digest_size=8, person=b"loraplex-sample").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _draw(logits: Floats, spec: SampleSpec) -> int:
    """Narrow the row by top_k and top_p, draw a place in what is left, trace it back to an id."""
    in_top_k = _top_k(logits, spec.top_k)
    left = logits if in_top_k is None else logits[in_top_k]
    temperature = np.float32(max(spec.temperature, 1e-30))  # what is lower draws the same
    with np.errstate(over="ignore"):  # −∞ is right
        weights = np.exp((left - left.max()) / temperature)
    in_top_p = _top_p(weights, spec.top_p)
    left = weights if in_top_p is None else weights[in_top_p]
    place = _invert(left, uniform(spec.seed, spec.position))
    for places in (in_top_p, in_top_k):
        if places is not None:
            place = int(places[place])
    return place


def _invert(weights: Floats, u: float) -> int:
    """Place at which the cumulative distribution reaches the uniform number u."""
    cumulative = np.cumsum(weights.astype(np.float64))
    # The first sum beyond u; should the product be rounded up to the whole, the last that grew.
    return min(
        int(np.searchsorted(cumulative, u * cumulative[-1], side="right")),
        int(np.searchsorted(cumulative, cumulative[-1], side="left")),
    )


def _top_k(logits: Floats, k: int) -> Indices | None:
    """Ids of the k largest logits, ascending; None keeps all."""
    if not 0 < k < len(logits):
        return None
    smallest = np.partition(logits, len(logits) - k)[len(logits) - k]
    return _largest(logits, k, smallest)


def _top_p(weights: Floats, p: float) -> Indices | None:
    """Places of the fewest weights that hold at least the share p of all, ascending; None keeps
    all. (Nucleus sampling, https://arxiv.org/abs/1904.09751.)"""
    if p >= 1:
        return None
    whole = weights.sum(dtype=np.float64)
    # Weights below this hold less than 1 - p together, so the nucleus does without them, and few
    # are left to sort. Half of it, against rounding.
    floor = 0.5 * (1 - p) * whole / len(weights)
    descending = np.sort(weights[weights >= floor])[::-1]
    cumulative = np.cumsum(descending.astype(np.float64))
    last = min(int(np.searchsorted(cumulative, p * whole, side="left")), len(descending) - 1)
    return _largest(weights, last + 1, descending[last])


def _largest(values: Floats, count: int, smallest: np.float32) -> Indices:
    """Places of the `count` largest, of which one is `smallest`; among equals the first count."""
    above = np.flatnonzero(values > smallest)
    equal = np.flatnonzero(values == smallest)[: count - len(above)]
    return np.sort(np.concatenate((above, equal)))
