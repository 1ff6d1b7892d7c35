"""Applies to rows of a step what their adapters do beside low-rank updates of linear layers."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from loraplex.adapters.effects import Lookup, ModuleEffect, TokenRows


class EffectRows(NamedTuple):
    """Rows ``[start, end)`` of a step, and what one adapter does with them at one module."""

    start: int
    end: int
    effect: ModuleEffect


def change_linear(y: Tensor, x: Tensor, effects: Iterable[EffectRows]) -> None:
    """Change the output of a linear layer in place.

    Args:
        y: ``[rows, out]``; of a head perhaps wider than some adapters' tokens.
        x: ``[rows, in]``, what it was computed from.
        effects: of rows that do not overlap; all others keep their bits.
    """
    for start, end, effect in effects:
        own_y, own_x = y[start:end], x[start:end]
        if effect.weight is not None:
            own_y[:, : len(effect.weight)] = functional.linear(own_x, effect.weight, effect.bias)
        _scale_and_shift(own_y, effect)
        if effect.tokens is not None:
            ids, rows, bias = effect.tokens.ids, effect.tokens.rows, effect.tokens.bias
            own_y.index_copy_(1, ids, functional.linear(own_x, rows, bias))


def change_embedded(y: Tensor, ids: Tensor, effects: Iterable[EffectRows], scale: float) -> None:
    """Change the output of an embedding in place.

    Args:
        y: ``[rows, width]``.
        ids: ``[rows]`` int64; each within the tables of its row's adapter.
        effects: of rows that do not overlap; all others keep their bits.
        scale: the embedding multiplies what it reads by it, as some of Gemma's do.
    """
    for start, end, effect in effects:
        own_y, own_ids = y[start:end], ids[start:end]
        if effect.weight is not None:
            own_y.copy_(functional.embedding(own_ids, effect.weight) * scale)
        if effect.lookup is not None:
            _look_up(own_y, own_ids, effect.lookup, scale)
        _scale_and_shift(own_y, effect)
        if effect.tokens is not None:
            _replace_tokens(own_y, own_ids, effect.tokens, scale)


def change_norm(y: Tensor, effects: Iterable[EffectRows]) -> None:
    """Change the output ``y [rows, width]`` of a norm in place."""
    for start, end, effect in effects:
        _scale_and_shift(y[start:end], effect)


def _scale_and_shift(y: Tensor, effect: ModuleEffect) -> None:
    gain, offset = effect.gain, effect.offset
    vector = gain if gain is not None else offset
    if vector is None:
        return
    if y.shape[1] > len(vector):
        y = y[:, : len(vector)]  # of a head that others made wider
    if gain is None:
        y.add_(vector)
    elif offset is None:
        y.mul_(gain)
    else:
        torch.addcmul(offset, y, gain, out=y)


def _look_up(y: Tensor, ids: Tensor, lookup: Lookup, scale: float) -> None:
    # In float32, and rounded once, as kernels/lora.py does it.
    update = functional.embedding(ids, lookup.a).float() @ lookup.b.float().T
    y.add_(update, alpha=lookup.scale * scale)


def _replace_tokens(y: Tensor, ids: Tensor, tokens: TokenRows, scale: float) -> None:
    places = torch.searchsorted(tokens.ids, ids).clamp_(max=len(tokens.ids) - 1)
    is_own = tokens.ids[places] == ids
    own = functional.embedding(places, tokens.rows) * scale
    torch.where(is_own.unsqueeze(1), own, y, out=y)
