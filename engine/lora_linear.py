"""Linear layers that add the adapters of the step to their output."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from loraplex.adapters.weights import AdapterWeights
from loraplex.kernels.lora import LoraSegment, add_lora


class AdapterRows(NamedTuple):
    """Rows ``[start, end)`` of a step that one adapter computes."""

    start: int
    end: int
    weights: AdapterWeights


@dataclass(frozen=True, slots=True)
class LoraRows:
    """Rows of a step as a layer sees them, and the adapters of some."""

    num_rows: int
    adapters: tuple[AdapterRows, ...]
    """In order of rows, not overlapping; rows of the base model are in none."""


_NO_ROWS = LoraRows(0, ())


class LoraBatch:
    """Adapters of the step that runs; the linear layers of one engine share it.

    The output head sees other rows than the body: only those whose logits are wanted.
    """

    def __init__(self, head_path: str) -> None:
        self._head_path = head_path
        self._body = self._head = _NO_ROWS

    @contextmanager
    def step(self, body: LoraRows, head: LoraRows) -> Iterator[None]:
        """Apply the adapters of ``body`` and ``head`` to all that runs inside."""
        self._body, self._head = body, head
        try:
            yield
        finally:
            self._body = self._head = _NO_ROWS

    def add(self, path: str, y: Tensor, x: Tensor) -> None:
        """Add to ``y [..., out]``, in place, what the adapters make of ``x [..., in]``.

        Raises:
            RuntimeError: an adapter targets a layer that does not see the rows of the step.
        """
        rows = self._head if path == self._head_path else self._body
        segments = [
            LoraSegment(start, end, pair.a, pair.b, pair.scale)
            for start, end, weights in rows.adapters
            if (pair := weights.pairs.get(path)) is not None
        ]
        if not segments:
            return
        if x.shape[:-1].numel() != rows.num_rows:
            raise RuntimeError(f"{path} got {x.shape[:-1].numel()} rows, not {rows.num_rows}")
        add_lora(y.view(-1, y.shape[-1]), x.reshape(-1, x.shape[-1]), segments)


class LoraLinear(nn.Linear):
    """A linear layer with the parameters of another, which may be tied to others still."""

    path: str
    batch: LoraBatch

    @classmethod
    def adopt(cls, base: nn.Linear, path: str, batch: LoraBatch) -> Self:
        """Take over the parameters of ``base``, which lies at ``path`` of its model."""
        with torch.device("meta"):
            layer = cls(base.in_features, base.out_features, bias=base.bias is not None)
        layer.weight, layer.bias = base.weight, base.bias
        layer.path, layer.batch = path, batch
        return layer

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return ``input [..., in] @ weight.T + bias``, with each row's adapter added."""
        output = nn.functional.linear(input, self.weight, self.bias)
        self.batch.add(self.path, output, input)
        return output


def adopt_linears(network: nn.Module, paths: Iterable[str], batch: LoraBatch) -> None:
    """Replace the linear layers at ``paths`` by such that add the adapters of ``batch``."""
    for path in paths:
        parent, _, name = path.rpartition(".")
        base = network.get_submodule(path)
        if not isinstance(base, nn.Linear):
            raise TypeError(f"{path} is {type(base).__name__}, not a linear layer")
        setattr(network.get_submodule(parent), name, LoraLinear.adopt(base, path, batch))
