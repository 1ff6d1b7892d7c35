"""Compares a module of a model with code of ours that may take its place.

A module is tried in float32 with random numbers for its parameters, so what is found equal is the
form of the computation, whatever the weights are.  Its linear layers, which are called as they are
by either code, are stood in for by others that cost nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from loraplex.kernels.attention import Scoring

TOLERANCE = 2e-5
"""Of float32: largest difference in a row, over the row's largest number."""
_MIN_EQUAL = 0.97
"""Of half precision: how many of a row's numbers have the same bits, since the same operations run
in the same order but for sums, and those are rounded."""
_SCALES = (1e-3, 1e-2, 0.1, 1.0, 3.0, 30.0, 1e3)
"""Of the rows, so that a small addend, a bound or another function shows in one of them."""

# What a module of a model raises if it is called in a way that it does not know.
CALL_ERRORS = (TypeError, ValueError, RuntimeError, AttributeError, LookupError)

NUM_ROWS = len(_SCALES)


def random_rows(width: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return ``[1, NUM_ROWS, width]``, each row on another scale."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(1, NUM_ROWS, width, generator=generator)
    return (rows * torch.tensor(_SCALES)[:, None]).to(dtype)


def agree(found: object, expected: object) -> bool:
    """True if tensors are equal row by row: within rounding in float32, nearly all bits in half
    precision."""
    if not (isinstance(found, Tensor) and isinstance(expected, Tensor)):
        return False
    if found.shape != expected.shape or found.dtype is not expected.dtype:
        return False
    if found.dtype is not torch.float32:
        return bool((found == expected).float().mean() >= _MIN_EQUAL)
    differences = (found - expected).abs().amax(-1)
    return bool((differences <= TOLERANCE * expected.abs().amax(-1)).all())


class LinearStandIn(nn.Module):
    """A linear layer of which each output sees one input."""

    def __init__(self, in_features: int, out_features: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randint(in_features, (out_features,), generator=generator)
        self.factors = torch.randn(out_features, generator=generator)
        self.offsets = torch.randn(out_features, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[..., out]`` for ``x [..., in]``."""
        return x[..., self.inputs] * self.factors + self.offsets


class AttentionStandIn(nn.Module):
    """An attention module whose output depends on all that a layer hands on to it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = LinearStandIn(width, width, seed=1)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        **_: object,
    ) -> tuple[Tensor, None]:
        """Return ``[1, rows, width]``, and no weights of attention."""
        cos, sin = position_embeddings
        seen = (cos - 2 * sin).mean(-1, keepdim=True)
        return self.linear(hidden_states) * seen, None


class AttentionCall(NamedTuple):
    """Arguments of ``AttentionStep.attend``."""

    layer: int
    q: Tensor
    k: Tensor
    v: Tensor
    scoring: Scoring

    def agrees(self, other: "AttentionCall") -> bool:
        """True if they ask for the same."""
        is_same = (self.layer, self.scoring) == (other.layer, other.scoring)
        pairs = ((self.q, other.q), (self.k, other.k), (self.v, other.v))
        return is_same and all(agree(own, others) for own, others in pairs)


class AttentionRecord:
    """An attention step that keeps what a module hands to it."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        """Return the values that each head sees; shapes as in ``AttentionStep``."""
        self.calls.append(AttentionCall(layer, q.clone(), k.clone(), v.clone(), scoring))
        return v.repeat_interleave(q.shape[1] // k.shape[1], dim=1)

    def only(self) -> AttentionCall | None:
        """Return the call, if there was one."""
        return self.calls[0] if len(self.calls) == 1 else None


def shell_of(
    module: nn.Module, stand_ins: Mapping[str, nn.Module] = MappingProxyType({})
) -> nn.Module | None:
    """Return a float32 copy with other parameters, and with stand-ins for linear layers.

    ``stand_ins`` take the place of other children, by name.  None if a module cannot be copied.
    """
    memo: dict[int, Any] = {id(getattr(module, name)): each for name, each in stand_ins.items()}
    config = getattr(module, "config", None)
    memo[id(config)] = config
    child: Any
    for seed, child in enumerate(module.children()):
        if is_linear(child) and id(child) not in memo:
            memo[id(child)] = LinearStandIn(child.in_features, child.out_features, seed)
    shell: nn.Module | None = result_of(deepcopy, module, memo)
    if shell is None:
        return None
    generator = torch.Generator().manual_seed(2)
    for parameter in shell.float().parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator) / 3
    return shell


def is_linear(module: object) -> bool:
    """True for what has the widths of a linear layer."""
    widths = (getattr(module, "in_features", None), getattr(module, "out_features", None))
    return all(isinstance(width, int) for width in widths)


def has_linears(module: nn.Module, names: Iterable[str]) -> bool:
    """True if a module has linear layers under all of these names."""
    return all(is_linear(getattr(module, name, None)) for name in names)


def tried_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a call with random positions in place of those seen."""
    generator = torch.Generator().manual_seed(3)
    shape = (1, NUM_ROWS, options["position_embeddings"][0].shape[-1])
    tables = (torch.randn(shape, generator=generator), torch.randn(shape, generator=generator))
    positions = torch.randint(1, 1 << 20, (1, NUM_ROWS), generator=generator)
    tried = {"position_embeddings": tables, "position_ids": positions}
    return {**options, **{name: tried[name] for name in tried.keys() & options.keys()}}


def result_of(call: Callable[..., Any], *args: object, **options: object) -> Any:  # noqa: ANN401  whatever a module returns
    """Return what a call returns, or None if it fails."""
    try:
        return call(*args, **options)
    except CALL_ERRORS:
        return None
