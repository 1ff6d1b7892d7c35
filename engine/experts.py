"""Modules with parameters of their own that adapters change: layers of experts, and routers.

Experts in one parameter are the rule since transformers 5. How PEFT adapts them (it makes
W + scale · B A for each step): `peft.tuners.lora.layer.ParamWrapper`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from loraplex.adapters.experts import ExpertPairs
from loraplex.engine.lora_batch import LoraBatch
from loraplex.kernels.lora import LoraSegment, add_lora

_DOWN = "down_proj"
_UP = ("gate_up_proj", "up_proj")


class ExpertRows(NamedTuple):
    """Rows ``[start, end)`` of a module, and what changes its parameters for them."""

    start: int
    end: int
    pairs: Mapping[str, ExpertPairs]
    """By name of the parameter; empty for rows that no adapter changes."""


class AdaptedParameters(nn.Module):
    """A module that computes each row with its adapter's parameters.

    Rows of the base model, and of adapters that leave the module alone, are computed by the module
    itself, and apart from all others.
    """

    def __init__(self, base: nn.Module, path: str, names: Sequence[str], batch: LoraBatch) -> None:
        """Take over ``base``, which lies at ``path`` of its model and computes each row by itself;
        ``names`` are those of its parameters that adapters may change."""
        super().__init__()
        self.base = base
        self.paths = {name: f"{path}.{name}" for name in names}
        self.batch = batch
        self.is_routed = {*names} <= {*_UP, _DOWN} and is_routed(base)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever the module has
        """Some models ask a module for more than its output."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)

    def forward(self, *inputs: Tensor) -> Any:  # noqa: ANN401  a tensor or a tuple of them
        """Return what the module makes of ``inputs``, each ``[rows, ...]``, by row.

        Raises:
            RuntimeError: an adapter changes a module that does not see the rows of the step.
        """
        adapted = self._adapted(len(inputs[0]))
        if not adapted:
            return self.base(*inputs)
        if not self.is_routed:
            return _joined([self._changed(rows, inputs) for rows in _all(adapted, len(inputs[0]))])
        output = torch.empty_like(inputs[0])
        is_plain = torch.ones(len(output), dtype=torch.bool)
        for start, end, _ in adapted:
            is_plain[start:end] = False
        plain = is_plain.nonzero()[:, 0].to(output.device)
        if len(plain):
            output[plain] = self.base(*(each[plain] for each in inputs))
        others = (~is_plain).nonzero()[:, 0].to(output.device)
        output[others] = route(self.base, [each[others] for each in inputs], _packed(adapted))
        return output

    def _adapted(self, num_rows: int) -> list[ExpertRows]:
        body, found = self.batch.body, []
        for start, end, weights in body.adapters:
            of_all = weights.parameters
            pairs = {name: of_all[path] for name, path in self.paths.items() if path in of_all}
            if pairs:
                found.append(ExpertRows(start, end, pairs))
        if found and num_rows != body.num_rows:
            names = ", ".join(self.paths.values())
            raise RuntimeError(f"{names} got {num_rows} rows, not {body.num_rows}")
        return found

    def _changed(self, rows: ExpertRows, inputs: Sequence[Tensor]) -> Any:  # noqa: ANN401  what torch modules return
        """Of one adapter's rows, with parameters made for them."""
        start, end, pairs = rows
        is_transposed = getattr(self.base, "is_transposed", False)
        changed = {}
        for name, pair in pairs.items():
            own = self.base.get_parameter(name)
            delta = pair.delta().to(own.dtype)
            changed[name] = own + (
                delta.mT if is_transposed and own.dim() == 3 else delta.view_as(own)
            )
        own_rows = tuple(each[start:end] for each in inputs)
        return torch.func.functional_call(self.base, changed, own_rows)


def adopt_parameters(
    network: nn.Module, parameters: Mapping[str, tuple[int, ...]], batch: LoraBatch
) -> None:
    """Make the modules that own ``parameters`` compute each row with its adapter."""
    owners: dict[str, list[str]] = {}
    for path in parameters:
        owner, _, name = path.rpartition(".")
        owners.setdefault(owner, []).append(name)
    for owner, names in owners.items():
        parent, _, name = owner.rpartition(".")
        base = network.get_submodule(owner)
        setattr(network.get_submodule(parent), name, AdaptedParameters(base, owner, names, batch))


def route(experts: nn.Module, inputs: Sequence[Tensor], adapted: Sequence[ExpertRows]) -> Tensor:
    """Compute experts as transformers' interface for them does (`transformers.integrations.moe`),
    with low-rank updates: y = Σ w · down(gate(up x)), where W x becomes W x + scale · B (A x).

    Args:
        experts: the module that has the base's matrices.
        inputs: ``x [rows, width]``, the experts of each row ``[rows, k]`` int64, and their weights
            ``[rows, k]``.
        adapted: rows in order, none twice.

    Returns:
        ``[rows, width]``
    """
    x, chosen, weights = inputs
    layers = _Layers(experts, adapted)
    weighted = x.new_zeros(*chosen.shape, x.shape[-1])
    for expert in torch.unique(chosen).tolist():
        rows, places = (chosen == expert).nonzero(as_tuple=True)
        hidden = layers.up(expert, rows, x[rows])
        hidden = layers.down(expert, rows, hidden)
        weighted[rows, places] = (hidden * weights[rows, places, None]).to(x.dtype)
    return weighted.sum(dim=1)


class _Layers:
    """The two layers of each expert."""

    def __init__(self, experts: Any, adapted: Sequence[ExpertRows]) -> None:  # noqa: ANN401  modules of many classes
        self._experts = experts
        self._adapted = adapted
        self._bounds = torch.tensor([[start, end] for start, end, _ in adapted])

    def up(self, expert: int, rows: Tensor, x: Tensor) -> Tensor:
        """With the gate; ``rows`` rise."""
        experts = self._experts
        made = self._linear(_UP[not experts.has_gate], expert, rows, x)
        gate = experts._apply_gate if experts.has_gate else experts.act_fn  # noqa: SLF001  shared
        gated: Tensor = gate(made)
        return gated

    def down(self, expert: int, rows: Tensor, x: Tensor) -> Tensor:
        """With the norm behind it, where there is one."""
        made = self._linear(_DOWN, expert, rows, x)
        if self._experts.has_post_expert_norm:
            made = self._experts.post_expert_norm(made)
        return made

    def _linear(self, name: str, expert: int, rows: Tensor, x: Tensor) -> Tensor:
        experts = self._experts
        weight = getattr(experts, name)[expert]
        bias = getattr(experts, f"{name}_bias")[expert] if experts.has_bias else None
        y = nn.functional.linear(x, weight.T if experts.is_transposed else weight, bias)
        add_lora(y, x.contiguous(), self._segments(name, expert, rows))
        return y

    def _segments(self, name: str, expert: int, rows: Tensor) -> list[LoraSegment]:
        bounds = torch.searchsorted(rows.cpu(), self._bounds).tolist()
        return [
            LoraSegment(first, end, pair.a[expert], pair.b[expert], pair.scale)
            for (first, end), each in zip(bounds, self._adapted, strict=True)
            if end > first and (pair := each.pairs.get(name)) is not None
        ]


@torch.inference_mode()
def is_routed(experts: Any) -> bool:  # noqa: ANN401  asked whether it is more than a module
    """True if `route` computes the same as the module itself."""
    options = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm", "num_experts")
    if not all(hasattr(experts, option) for option in (*options, _DOWN)):
        return False
    down = experts.down_proj
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, down.shape[2 if experts.is_transposed else 1], generator=generator)
    chosen = torch.rand(5, experts.num_experts, generator=generator).topk(min(2, len(down))).indices
    weights = torch.rand(chosen.shape, generator=generator)
    inputs = (x.to(down), chosen.to(down.device), weights.to(down))
    try:
        expected, found = experts(*inputs).float(), route(experts, inputs, ()).float()
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError):
        return False
    tolerance = max(1e-4, 8 * torch.finfo(down.dtype).eps)
    return bool((expected - found).abs().max() <= tolerance * expected.abs().max())


def _all(adapted: Sequence[ExpertRows], num_rows: int) -> Iterator[ExpertRows]:
    """With the rows between."""
    done = 0
    for rows in (*adapted, ExpertRows(num_rows, num_rows, {})):
        if rows.start > done:
            yield ExpertRows(done, rows.start, {})
        if rows.end > rows.start:
            yield rows
        done = rows.end


def _packed(adapted: Sequence[ExpertRows]) -> list[ExpertRows]:
    """The same where nothing lies between them."""
    packed, done = [], 0
    for start, end, pairs in adapted:
        packed.append(ExpertRows(done, done + end - start, pairs))
        done += end - start
    return packed


def _joined(parts: Sequence[Any]) -> Any:  # noqa: ANN401  tensors, or tuples of them
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))
