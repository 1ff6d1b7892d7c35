"""Sequences of a step whose KV blocks lie between one another."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from loraplex.kernels.attention import Span


def mixed_spans(
    sequences: Sequence[tuple[int, int]], block_size: int, generator: torch.Generator
) -> tuple[Span, ...]:
    """Give blocks to sequences of a first position and a number of rows each, as they lie after a
    while of serving: in no order."""
    sizes = [-(-(start + length) // block_size) for start, length in sequences]
    order = torch.randperm(sum(sizes), generator=generator).tolist()
    cuts = pairwise([0, *accumulate(sizes)])
    return tuple(
        Span(start, length, order[first:end])
        for (start, length), (first, end) in zip(sequences, cuts, strict=True)
    )
