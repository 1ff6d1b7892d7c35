"""The ops of `elementwise` in plain torch: slow, and easy to check against their definition."""

import torch
from torch import Tensor
from torch.nn import functional

from loraplex.kernels.elementwise import Activation, Norm


def rms_norm_reference(x: Tensor, norm: Norm) -> Tensor:
    """See `CpuElementwise.rms_norm`."""
    wide = x.double()
    normalised = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
    if norm.rounds_first:
        normalised = normalised.to(x.dtype).double()
    return (normalised * norm.gain.double()).to(x.dtype)


def add_norm_reference(
    x: Tensor,
    residual: Tensor,
    scale: float = 1.0,
    before: Norm | None = None,
    after: Norm | None = None,
) -> tuple[Tensor, Tensor]:
    """See `CpuElementwise.add_norm`."""
    added = x if before is None else rms_norm_reference(x, before)
    h = residual + (added * scale)
    return h, h if after is None else rms_norm_reference(h, after)


def rotary_reference(x: Tensor, cos: Tensor, sin: Tensor, norm: Norm | None = None) -> Tensor:
    """Return what `CpuElementwise.rotary` writes into ``x``."""
    if norm is not None:
        x = rms_norm_reference(x.reshape(-1, norm.gain.shape[0]), norm).view(x.shape)
    rotated = cos.shape[-1]
    turned, rest = x[..., :rotated], x[..., rotated:]
    low, high = turned.chunk(2, dim=-1)
    other = torch.cat([-high, low], dim=-1)
    turned = turned * cos[:, None] + other * sin[:, None]  # in the wider dtype of the two
    return torch.cat([turned.to(x.dtype), rest], dim=-1)


def gated_reference(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """See `CpuElementwise.gated`."""
    return activated_reference(gate.double(), activation).to(gate.dtype) * up


def activated_reference(x: Tensor, activation: Activation) -> Tensor:
    """Return the function of ``x``, in its dtype."""
    match activation:
        case Activation.SILU:
            return functional.silu(x)
        case Activation.GELU_TANH:
            return functional.gelu(x, approximate="tanh")
        case Activation.RELU:
            return functional.relu(x)
        case Activation.RELU_SQUARED:
            return functional.relu(x) ** 2
