"""Which modules with parameters of their own can compute each row of a batch with its adapter."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

_FIRST = 3
"""Rows of the first of two parts."""


class ParameterProbe:
    """Watches a forward pass for modules that keep experts in one parameter, or a matrix that is no
    linear layer, as routers do.

    Served are those that are called once, with tensors of one entry for each row alone, and whose
    output for some rows does not depend on others: what was seen is computed again in two parts.
    """

    def __init__(self, network: nn.Module, known: Collection[str], num_rows: int) -> None:
        """``known`` are paths of modules that take adapters in other ways; ``num_rows`` is what the
        forward pass has, 7 or so."""
        self._num_rows = num_rows
        self._network = network
        self._calls: dict[str, list[tuple[Any, ...]]] = {}
        self._owners = {
            path: names
            for path, module in network.named_modules()
            if path and path not in known and (names := _parameters(module))
        }
        self._handles = [
            network.get_submodule(path).register_forward_hook(
                self._recorder(path), with_kwargs=True
            )
            for path in self._owners
        ]

    @torch.inference_mode()
    def finish(self) -> Mapping[str, tuple[int, ...]]:
        """Stop recording; return what `BaseShapes.parameters` is."""
        for handle in self._handles:
            handle.remove()
        found = {
            f"{path}.{name}": shape
            for path, names in self._owners.items()
            if self._is_by_row(path)
            for name, shape in names.items()
        }
        return MappingProxyType(found)

    def _recorder(self, path: str) -> Callable[..., None]:
        def record(_: nn.Module, *call: object) -> None:
            self._calls.setdefault(path, []).append(call)

        return record

    def _is_by_row(self, path: str) -> bool:
        if len(self._calls.get(path, ())) != 1:
            return False
        ((args, options, output),) = self._calls[path]
        outputs = (output,) if isinstance(output, Tensor) else output
        if not args or options or not isinstance(outputs, tuple):
            return False
        if not all(self._has_rows(each) for each in (*args, *outputs)):
            return False
        module = self._network.get_submodule(path)
        parts = [module(*(each[rows] for each in args)) for rows in _parts()]
        joined = [torch.cat(each) for each in zip(*map(_as_tuple, parts), strict=True)]
        dtype = next(module.parameters()).dtype
        return all(
            _are_alike(one, other, dtype) for one, other in zip(joined, outputs, strict=True)
        )

    def _has_rows(self, value: object) -> bool:
        return isinstance(value, Tensor) and value.dim() > 1 and len(value) == self._num_rows


def _parameters(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes as adapters see them, (experts, out, in) or (out, in), in the module's order."""
    if isinstance(module, nn.Linear | nn.Embedding):
        return {}
    is_transposed = getattr(module, "is_transposed", False)
    found: dict[str, tuple[int, ...]] = {}
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.dim() == 3:
            experts, first, second = parameter.shape
            found[name] = (experts, second, first) if is_transposed else (experts, first, second)
        elif parameter.dim() == 2 and name == "weight":
            found[name] = tuple(parameter.shape)
    return found


def _parts() -> tuple[slice, slice]:
    return slice(None, _FIRST), slice(_FIRST, None)


def _as_tuple(output: Any) -> tuple[Tensor, ...]:  # noqa: ANN401  a tensor or a tuple of them
    return (output,) if isinstance(output, Tensor) else output


def _are_alike(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    """Of each row; in half precision of most, since there another expert may be as good."""
    tolerance = max(1e-4, 8 * torch.finfo(dtype).eps) if one.is_floating_point() else 0.0
    differences = (one - other).abs().flatten(1).amax(dim=1)
    num_alike = int((differences <= tolerance * other.abs().max()).sum())
    return num_alike == len(one) if dtype is torch.float32 else 2 * num_alike > len(one)
