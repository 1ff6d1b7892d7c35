"""Linear layers that compute each row with its adapter."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.effects import EffectRows, change_embedded, change_linear, change_norm
from loraplex.kernels.linear_cpu import PackedWeight, pack_weight
from loraplex.kernels.lora import LoraSegment, PlainSegments, Segments, add_lora
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
    changing: tuple[AdapterRows, ...] = ()
    """Those of adapters that do more than low-rank updates of linear layers."""
    vocab_size: int = 0
    """Tokens of the widest adapter; 0 if all have those of the base model."""
    is_plain: bool = False
    """True has torch compute the low-rank updates on a GPU too."""
    found: dict[str, Sequence[EffectRows]] = field(default_factory=dict, compare=False)
    """What `effects` found; steps whose rows are the same share it."""

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
        located: StepSegments | CpuSegments | None = None
        if rows and len(rows) == len(adapters):
            located = CpuSegments.of(rows, cpu_lora) if cpu_lora else step_segments(rows)
        return cls(
            num_rows,
            tuple(adapters),
            located,
            changing=tuple(each for each in adapters if each.weights.effects),
            vocab_size=max((each.weights.vocab_size or 0 for each in adapters), default=0),
        )

    def segments(self, path: str, module: int) -> Segments | None:
        """What the module at ``path`` adds; none if no adapter of the step targets it."""
        if self.located is not None:
            return self.located.at(module)
        found = [
            LoraSegment(start, end, pair.a, pair.b, pair.scale)
            for start, end, weights in self.adapters
            if (pair := weights.pairs.get(path)) is not None
        ]
        return PlainSegments(found) if self.is_plain else found

    def effects(self, path: str) -> Sequence[EffectRows]:
        """What adapters do at ``path`` beside that."""
        if not self.changing:
            return ()
        if path not in self.found:
            self.found[path] = [
                EffectRows(start, end, effect)
                for start, end, weights in self.changing
                if (effect := weights.effects.get(path)) is not None
            ]
        return self.found[path]


_NO_ROWS = LoraRows(0, ())


class LoraBatch:
    """Adapters of the step that runs; the layers of one engine share it.

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

    def linear(self, path: str, y: Tensor, x: Tensor) -> Tensor:
        """Return ``y [..., out]`` of the base, whose memory is used, as each row's adapter has it
        for ``x [..., in]``.

        The output is wider than ``y`` where an adapter has more tokens.

        Raises:
            RuntimeError: an adapter targets a layer that does not see the rows of the step.
        """
        rows = self._head if path == self._head_path else self._body
        segments = rows.segments(path, self._modules[path])
        effects = rows.effects(path)
        if not segments and not effects:
            return y
        _check_rows(path, x.shape[:-1].numel(), rows)
        flat_x, flat_y = x.reshape(-1, x.shape[-1]), y.view(-1, y.shape[-1])
        if segments:
            add_lora(flat_y, flat_x, segments)
        if path == self._head_path and rows.vocab_size > y.shape[-1]:
            flat_y = nn.functional.pad(flat_y, (0, rows.vocab_size - y.shape[-1]))
        change_linear(flat_y, flat_x, effects)
        return flat_y.view(*y.shape[:-1], -1)

    @property
    def body(self) -> LoraRows:
        """The rows of all layers but the head, while a step runs."""
        return self._body

    def base_ids(self, ids: Tensor, num_embeddings: int) -> Tensor:
        """Return ids that a table of the base can be asked for: those that adapters added become
        some other, and `embedding` overwrites what is read for it."""
        if self._body.vocab_size <= num_embeddings:
            return ids
        return ids.clamp(max=num_embeddings - 1)

    def embedding(self, path: str, y: Tensor, ids: Tensor, scale: float) -> Tensor:
        """Return ``y [..., width]`` of the base, changed in place as each row's adapter has it for
        ``ids [...]``; what stands in tables is multiplied by ``scale``.

        Raises:
            RuntimeError: an adapter targets an embedding that does not see the rows of the step.
        """
        effects = self._body.effects(path)
        if effects:
            _check_rows(path, ids.numel(), self._body)
            change_embedded(y.view(-1, y.shape[-1]), ids.reshape(-1), effects, scale)
        return y

    def norm(self, path: str, y: Tensor) -> Tensor:
        """Return ``y [..., width]`` of the base, changed in place as each row's adapter has it.

        Raises:
            RuntimeError: an adapter targets a norm that does not see the rows of the step.
        """
        effects = self._body.effects(path)
        if effects:
            _check_rows(path, y.shape[:-1].numel(), self._body)
            change_norm(y.view(-1, y.shape[-1]), effects)
        return y


def _check_rows(path: str, num_rows: int, rows: LoraRows) -> None:
    if num_rows != rows.num_rows:
        raise RuntimeError(f"{path} got {num_rows} rows, not {rows.num_rows}")


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
        """Return ``input [..., in] @ weight.T + bias``, for each row with its adapter."""
        return self.batch.linear(self.path, self.base_output(input), input)

    def base_weight(self) -> Tensor:
        """Return the weight, ``[out, in]``: a copy of it where it is packed."""
        return self.weight if self.packed is None else self.packed.unpack()

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
        """Return ``x [..., in] @ weight + bias``, for each row with its adapter."""
        output = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return self.batch.linear(self.path, output.view(*x.shape[:-1], -1), x)

    def base_weight(self) -> Tensor:
        """Return the weight, ``[out, in]``."""
        return self.weight.T
