"""What the adapters of the step that runs do at each layer."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from loraplex.adapters.effects import LoraPair, ModuleEffect
from loraplex.adapters.packed_pairs import PackedPairs
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.effects import change_embedded, change_linear, change_norm
from loraplex.engine.linear_group import Detour, Held, LinearGroup
from loraplex.engine.lora_rows import LoraRows
from loraplex.kernels.lora import add_lora
from loraplex.kernels.lora_cpu import transposed_in_memory
from loraplex.kernels.segments import Slices, lora_table, packed_table

_NO_ROWS = LoraRows(0, ())


class Turn(NamedTuple):
    """What a forward pass leaves with the layers where it rests, while another runs."""

    body: LoraRows = _NO_ROWS
    head: LoraRows = _NO_ROWS
    detour: Detour | None = None
    held: tuple[tuple[LinearGroup, Held], ...] = ()
    """What groups hold of it, for layers that are called later."""


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
        self._paths = tuple(shapes)
        self._shapes = shapes
        self._shape_list = tuple(shapes.values())
        self._numbers = {path: number for number, path in enumerate(shapes)}
        self._head_module = self._paths.index(head_path) if head_path in shapes else -1
        self._body = self._head = _NO_ROWS
        self.detour: Detour | None = None
        """See `Updates.detour`."""
        self.groups: list[LinearGroup] = []
        """Of the layers, and what they hold is given up after each step."""

    def slices(self, paths: Sequence[str], device: torch.device) -> Slices:
        """Number the layers at ``paths``, which see one input."""
        widths = [self._shapes[path][0] for path in paths]
        modules = [self._paths.index(path) for path in paths]
        return Slices.of(modules, widths, self._shapes[paths[0]][1], device)

    def paths(self, slices: Slices) -> tuple[str, ...]:
        """Return the paths of the layers that `slices` has numbered."""
        return tuple(self._paths[module] for module in slices.modules)

    def size(self, slices: Slices) -> int:
        """Return the weights of these layers of the base; the head has few rows, and counts for
        nothing."""
        if slices.modules[0] == self._head_module:
            return 0
        return sum(prod(self._shape_list[module]) for module in slices.modules)

    def locate(
        self,
        weights: AdapterWeights,
        dtype: torch.dtype,
        device: torch.device,
        *,
        on_cpu: bool = False,
    ) -> AdapterWeights:
        """Return the same weights with the table that compiled kernels read.  Those of CPUs read
        ``b`` transposed in memory, and apply gains and offsets too, which are then no effects.

        Raises:
            ValueError: a weight has not the shape of its layer, or not this dtype or device.
        """
        effects = weights.effects
        affines: dict[str, ModuleEffect] = {}
        if on_cpu:
            affines, effects = _without_affines(effects, self._shapes)
        of_modules = [affines.get(path) for path in self._shapes] if affines else ()
        pairs = weights.pairs
        if isinstance(pairs, PackedPairs) and pairs.fits(dtype, device, b_is_transposed=on_cpu):
            places = pairs.places(self._numbers)
            table = packed_table(places, pairs.data, self._shape_list, affines=of_modules)
            return replace(weights, effects=effects, table=table)
        held: Mapping[str, LoraPair] = pairs
        if on_cpu:
            held = {path: replace(p, b=transposed_in_memory(p.b)) for path, p in held.items()}
        table = lora_table(
            [held.get(path) for path in self._shapes],
            self._shape_list,
            dtype=dtype,
            device=device,
            b_is_transposed=on_cpu,
            affines=of_modules,
        )
        return replace(weights, pairs=held, effects=effects, table=table)

    @contextmanager
    def step(self, body: LoraRows, head: LoraRows, detour: Detour | None = None) -> Iterator[None]:
        """Apply the adapters of ``body`` and ``head`` to all that runs inside; ``detour`` computes
        groups of linear layers, if there is one."""
        self._body, self._head, self.detour = body, head, detour
        try:
            yield
        finally:
            self._body = self._head = _NO_ROWS
            self.detour = None
            for group in self.groups:
                group.held = None

    def exchange(self, turn: Turn) -> Turn:
        """Have the layers go on with another forward pass, which left ``turn``; return what the one
        leaves that they are at."""
        held = tuple((group, group.held) for group in self.groups if group.held is not None)
        left = Turn(self._body, self._head, self.detour, held)
        for group, _ in held:
            group.held = None
        self._body, self._head, self.detour, others = turn
        for group, of_others in others:
            group.held = of_others
        return left

    def linear(self, slices: Slices, y: Tensor, x: Tensor) -> Tensor:
        """Return ``y [..., out]`` of the base, whose memory is used, as each row's adapter has it
        for ``x [..., in]``.

        The output is wider than ``y`` where an adapter has more tokens.

        Raises:
            RuntimeError: an adapter targets a layer that does not see the rows of the step.
        """
        is_head = slices.modules[0] == self._head_module
        rows = self._head if is_head else self._body
        if not rows.adapters and rows.located is None:
            return y
        num_rows = x.shape[:-1].numel()
        flat_x, flat_y = x.reshape(num_rows, x.shape[-1]), y.view(num_rows, y.shape[-1])
        if rows.located is not None:
            segments = rows.located.at(slices)
            if segments is not None:
                _check_rows(self._paths[slices.modules[0]], num_rows, rows)
                add_lora(flat_y, flat_x, segments)
            if not rows.changing:
                return y
        if is_head and rows.vocab_size > y.shape[-1]:
            wider = nn.functional.pad(flat_y, (0, rows.vocab_size - y.shape[-1]))
            self._change(slices, wider, flat_x, rows)
            return wider.view(*y.shape[:-1], wider.shape[-1])
        self._change(slices, flat_y, flat_x, rows)
        return y

    def _change(self, slices: Slices, y: Tensor, x: Tensor, rows: LoraRows) -> None:
        """Do what no compiled kernel does, module after module."""
        for module, first, width in zip(slices.modules, slices.offsets, slices.widths, strict=True):
            path = self._paths[module]
            pairs = rows.pairs(path) if rows.located is None else ()
            effects = rows.effects(path)
            if pairs or effects:
                _check_rows(path, len(x), rows)
                if pairs:
                    add_lora(y[:, first : first + width], x, pairs)
                change_linear(y if len(slices) == 1 else y[:, first : first + width], x, effects)

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


def _without_affines(
    effects: Mapping[str, ModuleEffect], shapes: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, ModuleEffect], dict[str, ModuleEffect]]:
    """Gains and offsets of linear layers that a kernel can apply, and all other effects.

    Where a layer has a weight of its own, that comes before them, so they stay beside it.
    """
    affines, others = {}, {}
    for path, effect in effects.items():
        vectors = [v for v in (effect.gain, effect.offset) if v is not None]
        width = shapes[path][0] if path in shapes else 0
        if effect.weight is None and vectors and all(len(v) == width for v in vectors):
            affines[path] = ModuleEffect(gain=effect.gain, offset=effect.offset)
            if effect.tokens is not None:
                others[path] = ModuleEffect(tokens=effect.tokens)
        else:
            others[path] = effect
    return affines, others


def _check_rows(path: str, num_rows: int, rows: LoraRows) -> None:
    if num_rows != rows.num_rows:
        raise RuntimeError(f"{path} got {num_rows} rows, not {rows.num_rows}")
