"""How long an engine's step would take this machine at its best."""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

import torch
from torch import Tensor
from torch.nn.functional import linear

from loraplex.engine.memory import MIB
from loraplex.engine.model import LoadedModel
from loraplex.platform.bench.adapters import BenchAdapter
from loraplex.platform.bench.floors import FloorProbe, Work
from loraplex.platform.bench.series import Probe, Series

READ = Series("read_bytes_per_s", "machine", "large", 0)
GEMM = Series("gemm_flops_per_s", "machine", "large", 0)
_WEIGHT_BYTES = 128 * MIB
"""More than caches hold."""


def base_work(model: LoadedModel, num_rows: int) -> Work:
    """Of all linear layers, the head among them, for as many rows."""
    num_weights = sum(
        out_features * in_features for out_features, in_features in model.shapes.linears.values()
    )
    return Work(num_weights * model.dtype.itemsize, 2 * num_rows * num_weights)


def adapters_work(model: LoadedModel, adapters: Sequence[BenchAdapter]) -> Work:
    """Of one row on each of these adapters, at their true ranks."""
    num_bytes = sum(adapter.num_bytes for adapter in adapters)
    return Work(num_bytes, 2 * num_bytes // model.dtype.itemsize)


def machine_probes(
    model: LoadedModel, num_rows: int, clock: Callable[[], float]
) -> list[tuple[str, Probe]]:
    """Measure reading, a product of large matrices, and layers of this model on few rows.

    Products are those of torch, in float32 or the model's dtype, whichever is faster: an engine may
    compute in either.
    """
    dtypes = {torch.float32, model.dtype}
    floors = FloorProbe(dtypes, model.device, clock)
    weights = {dtype: _weights(model, dtype) for dtype in dtypes}
    few = Series("gemm_flops_per_s", "machine", "few_rows", num_rows)

    def reads(repeat: int) -> Mapping[Series, float]:  # noqa: ARG001  a `Probe`
        return {READ: floors.read_bytes_per_s()}

    def products(repeat: int) -> Mapping[Series, float]:  # noqa: ARG001  as all probes
        return {GEMM: max(floors.flops_per_s().values())}

    def layers(repeat: int) -> Mapping[Series, float]:  # noqa: ARG001  as all probes
        return {few: max(_rate(layers, num_rows, floors) for layers in weights.values())}

    return [
        ("reading memory", reads),
        ("large products", products),
        ("products of few rows", layers),
    ]


def _rate(weights: Sequence[Tensor], num_rows: int, floors: FloorProbe) -> float:
    """FLOP/s of layers on so many rows."""
    rows = {weight.shape[1]: weight.new_ones(num_rows, weight.shape[1]) for weight in weights}

    def run() -> None:
        for weight in weights:
            linear(rows[weight.shape[1]], weight)

    return 2 * num_rows * sum(weight.numel() for weight in weights) / floors.least_s(run)


def _weights(model: LoadedModel, dtype: torch.dtype) -> list[Tensor]:
    """Random layers of the model's shapes in turn, so many that none stays in a cache."""
    weights: list[Tensor] = []
    shapes = [s for path, s in model.shapes.linears.items() if path != model.head_path]
    num_bytes = 0
    for shape in cycle(shapes):
        weights.append(torch.ones(shape, dtype=dtype, device=model.device))
        num_bytes += weights[-1].nbytes
        if num_bytes >= _WEIGHT_BYTES:
            break
    return weights
