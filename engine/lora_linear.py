"""Linear layers that add the adapters of the step to their output."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from loraplex.adapters.weights import AdapterWeights
from loraplex.kernels.linear_cpu import PackedWeight, pack_weight
from loraplex.kernels.lora import LoraSegment, Segments, add_lora
from loraplex.kernels.lora_cpu import CpuLora, CpuSegments, transposed_in_memory
from loraplex.kernels.segments import StepSegments, TableRows, lora_table, step_segments


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
    located: StepSegments | CpuSegments | None = None
    """The same for compiled kernels, if all adapters have tables."""

    @classmethod
    def of(
        cls, num_rows: int, adapters: Sequence[AdapterRows], cpu_lora: CpuLora | None = None
    ) -> Self:
        """Locate the adapters' rows for compiled kernels too, where tables are at hand.

        ``cpu_lora`` is the kernel of a CPU, if there is one.
        """
        rows = [
            TableRows(start, end, weights.table)
            for start, end, weights in adapters
            if weights.table is not None
        ]
        if not rows or len(rows) != len(adapters):
            return cls(num_rows, tuple(adapters))
        located = CpuSegments.of(rows, cpu_lora) if cpu_lora else step_segments(rows)
        return cls(num_rows, tuple(adapters), located)

    def segments(self, path: str, module: int) -> Segments | None:
        """What the module at ``path`` adds; none if no adapter of the step targets it."""
        if self.located is not None:
            return self.located.at(module)
        return [
            LoraSegment(start, end, pair.a, pair.b, pair.scale)
            for start, end, weights in self.adapters
            if (pair := weights.pairs.get(path)) is not None
        ]


_NO_ROWS = LoraRows(0, ())


class LoraBatch:
    """Adapters of the step that runs; the linear layers of one engine share it.

    The output head sees other rows than the body: only those whose logits are wanted.
    """

    def __init__(
        self,
        head_path: str,
        shapes: Mapping[str, tuple[int, int]],
    ) -> None:
        """``shapes`` has (out, in) of each layer by path; its order numbers the layers."""
        self._head_path = head_path
        self._shapes = shapes
        self._modules = {path: module for module, path in enumerate(shapes)}
        self._body = self._head = _NO_ROWS

    def locate(
        self,
        weights: AdapterWeights,
        dtype: torch.dtype,
        device: torch.device,
        *,
        b_is_transposed: bool = False,
    ) -> AdapterWeights:
        """Return the same weights with the table that compiled kernels read; those of CPUs read
        ``b`` transposed in memory.

        Raises:
            ValueError: a weight has not the shape of its layer, or not this dtype or device.
        """
        held = weights.pairs
        if b_is_transposed:
            held = {path: replace(p, b=transposed_in_memory(p.b)) for path, p in held.items()}
        table = lora_table(
            [held.get(path) for path in self._shapes],
            list(self._shapes.values()),
            dtype=dtype,
            device=device,
            b_is_transposed=b_is_transposed,
        )
        return replace(weights, pairs=held, table=table)

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
        segments = rows.segments(path, self._modules[path])
        if not segments:
            return
        if x.shape[:-1].numel() != rows.num_rows:
            raise RuntimeError(f"{path} got {x.shape[:-1].numel()} rows, not {rows.num_rows}")
        add_lora(y.view(-1, y.shape[-1]), x.reshape(-1, x.shape[-1]), segments)


class LoraLinear(nn.Linear):
    """A linear layer with the parameters of another, which may be tied to others still."""

    path: str
    batch: LoraBatch
    packed: PackedWeight | None
    """Takes the place of ``weight``, which is then without data."""

    @classmethod
    def adopt(cls, base: nn.Linear, path: str, batch: LoraBatch) -> Self:
        """Take over the parameters of ``base``, which lies at ``path`` of its model."""
        with torch.device("meta"):
            layer = cls(base.in_features, base.out_features, bias=base.bias is not None)
        layer.packed = pack_weight(base.weight)
        if layer.packed is None:
            layer.weight = base.weight
        layer.bias = base.bias
        layer.requires_grad_(requires_grad=False)
        layer.path, layer.batch = path, batch
        return layer

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  nn.Linear's own name
        """Return ``input [..., in] @ weight.T + bias``, with each row's adapter added."""
        output = self.base_output(input)
        self.batch.add(self.path, output, input)
        return output

    def base_output(self, x: Tensor) -> Tensor:
        """Return ``x [..., in] @ weight.T + bias``."""
        if self.packed is None:
            return nn.functional.linear(x, self.weight, self.bias)
        rows = x.reshape(-1, x.shape[-1])
        return self.packed.apply(rows, self.bias).view(*x.shape[:-1], self.out_features)


class LoraConv1D(nn.Module):
    """The same for a layer that keeps its weight as ``[in, out]``, as GPT-2 has them."""

    weight: Tensor
    bias: Tensor
    path: str
    batch: LoraBatch

    @classmethod
    def adopt(cls, base: nn.Module, path: str, batch: LoraBatch) -> Self:
        """Take over the parameters of ``base``, which lies at ``path`` of its model."""
        layer = cls()
        layer.weight, layer.bias = base.get_parameter("weight"), base.get_parameter("bias")
        layer.path, layer.batch = path, batch
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x [..., in] @ weight + bias``, with each row's adapter added."""
        output = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        output = output.view(*x.shape[:-1], -1)
        self.batch.add(self.path, output, x)
        return output


def adopt_linears(
    network: nn.Module,
    shapes: Mapping[str, tuple[int, int]],
    head_path: str,
) -> LoraBatch:
    """Replace the linear layers of ``shapes`` by such that add the adapters of the batch."""
    batch = LoraBatch(head_path, shapes)
    for path in shapes:
        base = network.get_submodule(path)
        parent, _, name = path.rpartition(".")
        layer: nn.Module
        if isinstance(base, nn.Linear):
            layer = LoraLinear.adopt(base, path, batch)
        else:
            layer = LoraConv1D.adopt(base, path, batch)
        setattr(network.get_submodule(parent), name, layer)
    return batch
