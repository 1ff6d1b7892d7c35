"""Norms and gated layers of models that compiled ops compute, found by what they compute."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from loraplex.engine import proof
from loraplex.kernels.elementwise import Activation, CpuElementwise, Norm

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon")
_ACTIVATION_NAMES = ("act_fn", "activation_fn")


Children = Mapping[str, Any]
"""A module's children by name, as they are at the time, since others may be put there."""


def children_of(module: nn.Module) -> Children:
    """Return a module's own table: an attribute takes a microsecond to find, which is much here."""
    return module._modules  # noqa: SLF001  named_children() would be a copy


def has_hooks(module: nn.Module) -> bool:
    """True if calling a module does more than its forward pass."""
    return bool(module._forward_hooks or module._forward_pre_hooks)  # noqa: SLF001  torch tells it nowhere else


def find_norm(module: object, ops: CpuElementwise) -> Norm | None:
    """Return the root mean square norm that a module is, if it is one of a dtype that ops have."""
    if not isinstance(module, nn.Module) or has_hooks(module):
        return None
    weight = dict(module.named_parameters()).get("weight")
    eps = next((value for name in _EPS_NAMES if (value := getattr(module, name, None))), None)
    if weight is None or weight.dim() != 1 or not isinstance(eps, float):
        return None
    if not ops.supports(weight.dtype):
        return None
    x = proof.random_rows(weight.shape[0], seed=0, dtype=weight.dtype)
    expected = proof.result_of(module, x)
    for offset in (0.0, 1.0):
        gain = (weight.float() + offset).contiguous()
        for rounds_first in (True, False):
            norm = Norm(gain, eps, rounds_first)
            if proof.agree(ops.rms_norm(x, norm), expected):
                return norm
    return None


@dataclass(frozen=True, slots=True)
class FusedNorm:
    """The forward pass of a norm."""

    norm: Norm
    ops: CpuElementwise

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``[..., width]`` for ``x [..., width]``."""
        return self.ops.rms_norm(x, self.norm)


def find_norms(modules: Iterable[nn.Module], ops: CpuElementwise) -> dict[nn.Module, FusedNorm]:
    """Return the forward passes of those that are norms."""
    found = {module: find_norm(module, ops) for module in modules}
    return {module: FusedNorm(norm, ops) for module, norm in found.items() if norm is not None}


def find_activation(module: nn.Module, ops: CpuElementwise) -> Activation | None:
    """Return the function that the gate of a gated layer goes through, if ops have it."""
    named = (getattr(module, name, None) for name in _ACTIVATION_NAMES)
    function = next(filter(callable, named), None)
    if function is None:
        return None
    steps = torch.linspace(-12, 12, 999)
    x = torch.cat([steps, torch.tensor([-1e4, -100.0, 100.0, 1e4])])[None, None]
    expected = proof.result_of(function, x)
    if not isinstance(expected, Tensor) or expected.shape != x.shape:
        return None
    for activation in Activation:
        differences = (ops.gated(x, torch.ones_like(x), activation) - expected).abs()
        if (differences <= proof.TOLERANCE * expected.abs().clamp(min=x.abs())).all():
            return activation
    return None


@dataclass(frozen=True, slots=True)
class FusedMlp:
    """The forward pass of a gated layer: ``down(activation(gate(x)) * up(x))``."""

    children: Children
    activation: Activation
    ops: CpuElementwise

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``[..., width]`` for ``x [..., width]``."""
        children = self.children
        gate, up = children["gate_proj"](x), children["up_proj"](x)
        down: Tensor = children["down_proj"](self.ops.gated(gate, up, self.activation))
        return down


@dataclass(frozen=True, slots=True)
class FusedJointMlp:
    """The same where one linear layer computes gate and up, side by side."""

    children: Children
    activation: Activation
    ops: CpuElementwise

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``[..., width]`` for ``x [..., width]``."""
        gate, up = self.children["gate_up_proj"](x).chunk(2, dim=-1)
        down: Tensor = self.children["down_proj"](self.ops.gated(gate, up, self.activation))
        return down


_MLP_FORMS: Mapping[tuple[str, ...], type[FusedMlp | FusedJointMlp]] = MappingProxyType(
    {
        ("gate_proj", "up_proj", "down_proj"): FusedMlp,
        ("gate_up_proj", "down_proj"): FusedJointMlp,
    }
)
"""By the names of their linear layers, the first of which sees the input."""


def find_mlp(module: nn.Module, ops: CpuElementwise) -> FusedMlp | FusedJointMlp | None:
    """Return the forward pass of a module if it is a gated layer."""
    for names, form in _MLP_FORMS.items():
        if not proof.has_linears(module, names):
            continue
        activation, shell = find_activation(module, ops), proof.shell_of(module)
        if activation is None or shell is None:
            return None
        x = proof.random_rows(getattr(module, names[0]).in_features, seed=4)
        if proof.agree(
            proof.result_of(form(children_of(shell), activation, ops), x), proof.result_of(shell, x)
        ):
            return form(children_of(module), activation, ops)
    return None
