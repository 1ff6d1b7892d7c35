"""DoRA's norms (https://arxiv.org/abs/2402.09353), of which the weights of a base are a part.

DoRA learns a magnitude m of each output o, so that the weight of a layer becomes
m[o] · (W + s·BA)[o] / ‖(W + s·BA)[o]‖. With g = m / ‖W + s·BA‖ that is g times what plain LoRA
makes of the input. The norm never changes at inference, so it is taken once, when the adapter is
loaded.
"""

import torch
from torch import Tensor

_BLOCK_ROWS = 4096


def gain_of_linear(magnitude: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return ``m / ‖W + s·BA‖`` by output, ``[out]`` float32.

    Sums run in float32, as PEFT's do for adapters in float32, over blocks of rows: there is never a
    copy of the whole weight. PEFT takes the norm of a base in bfloat16 after it has rounded the
    sum; that differs by at most 1 / 256.

    Args:
        magnitude: ``[out]``.
        weight: ``[out, in]``, the base's.
        a: ``[rank, in]``.
        b: ``[out, rank]``.
        scale: s.
    """
    a, b = a.to(weight.device, torch.float32), b.to(weight.device, torch.float32)
    norms = [
        torch.linalg.vector_norm(rows.float() + scale * (b_rows @ a), dim=1)
        for rows, b_rows in zip(_blocks(weight), _blocks(b), strict=True)
    ]
    return magnitude.to(weight.device, torch.float32) / torch.cat(norms)


def gain_of_embedding(
    magnitude: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float
) -> Tensor:
    """Return ``m / ‖W + s·(BA)ᵀ‖`` by dimension, over all tokens: ``[width]`` float32.

    Args:
        magnitude: ``[width]``.
        weight: ``[rows, width]``, the base's.
        a: ``[rank, rows]``.
        b: ``[width, rank]``.
        scale: s.
    """
    a, b = a.to(weight.device, torch.float32), b.to(weight.device, torch.float32)
    squares = torch.zeros(weight.shape[1], dtype=torch.float64, device=weight.device)
    for rows, a_rows in zip(_blocks(weight), _blocks(a.T), strict=True):
        squares += (rows.float() + scale * (a_rows @ b.T)).double().square().sum(dim=0)
    return magnitude.to(weight.device, torch.float32) / squares.sqrt().float()


def _blocks(matrix: Tensor) -> tuple[Tensor, ...]:
    return torch.split(matrix, _BLOCK_ROWS)
