"""Adapters that were made up, to time steps with."""

from collections.abc import Callable

import torch

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.effects import LoraPair
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights

_RANKS = (8, 32, 8, 32)


def synthetic_adapters(
    base: BaseShapes,
    dtype: torch.dtype,
    device: torch.device,
    at_most_bytes: int,
    locate: Callable[[AdapterWeights], AdapterWeights],
) -> dict[AdapterKey, AdapterWeights]:
    """Adapters on all linear layers but the head, of two ranks, as many as fit into the bytes.

    They add nothing: a product with zeros takes as long as any other. `locate` is the runner's.
    """
    adapters: dict[AdapterKey, AdapterWeights] = {}
    for number, rank in enumerate(_RANKS):
        pairs = {
            path: LoraPair(
                torch.zeros(rank, num_in, dtype=dtype, device=device),
                torch.zeros(num_out, rank, dtype=dtype, device=device),
                1.0,
            )
            for path, (num_out, num_in) in base.linears.items()
            if path not in base.heads
        }
        num_bytes = sum(pair.a.nbytes + pair.b.nbytes for pair in pairs.values())
        at_most_bytes -= num_bytes
        if at_most_bytes < 0:
            break
        key = AdapterKey("calibration", f"adapter-{number}")
        adapters[key] = locate(AdapterWeights(num_bytes, pairs))
    return adapters
