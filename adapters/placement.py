"""Copies an adapter from the host to the device, layer by layer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.effects import Assembled, BaseWeights, LoraPair
from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.own_pages import own_pages
from loraplex.adapters.packed_pairs import PackedPairs
from loraplex.adapters.pair_layout import Layer
from loraplex.adapters.storage import Store
from loraplex.adapters.weights import AdapterWeights, Once, VerifiedAdapter, read

Prepare = Callable[[AdapterWeights], AdapterWeights]
"""Makes weights ready for kernels; of packed pairs it reads nothing."""


@dataclass(frozen=True, slots=True)
class EarlyAdapter:
    """An adapter that may be computed with, layer by layer, before all of it is on the device."""

    weights: AdapterWeights
    """As it will be, made ready for kernels. What has not come yet is NaN."""
    host: VerifiedAdapter
    """What it is copied from; never read by the device."""
    layer_of: Mapping[str, int]
    """By path, modules that it touches: the number of their layer among the adapter's, from 0, in
    the order in which layers come."""


def load(
    store: Store,
    digest: str,
    base: BaseShapes,
    base_weights: BaseWeights,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> AdapterWeights:
    """`read`, then `place`."""
    return place(read(store, digest, base, base_weights), dtype=dtype, device=device)


def place(
    adapter: VerifiedAdapter,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    progress: LoadProgress | None = None,
    prepare: Prepare = lambda weights: weights,
) -> AdapterWeights:
    """Copy an adapter to the device, layer by layer, into memory of its own, which is NaN where
    nothing has come yet. ``progress`` is told of each layer.

    One that consists of packed pairs alone may be used layer by layer while it comes; what else an
    adapter does comes into being as it is copied, so that it is used as a whole. What ``progress``
    is told is there has been copied, on a GPU too (that has not been run on one).
    """
    progress = progress or LoadProgress()
    source, layers = adapter.pairs.data, adapter.outline.pairs.layers
    slot = _poisoned(len(source), dtype, device)
    pairs = adapter.pairs.on_device(slot)
    early = None if adapter.modules else prepare(_weights(adapter, slot.dtype, pairs, {}))
    is_early = early is not None and early.pairs is pairs
    _settle(slot)
    progress.open(len(layers), _early(adapter, early) if early and is_early else None)
    # Copies, on a CPU too: what one memory gives up must not be held by the other.
    weight = Once(lambda tensor: tensor.to(device, dtype, copy=True))
    exact = Once(lambda tensor: tensor.to(device, copy=True))
    placed: dict[str, Assembled] = {}
    for layer in layers:
        modules = {path: adapter.modules[path] for path in layer.paths if path in adapter.modules}
        progress.pace(_num_elements(layer, modules) * dtype.itemsize)
        within = slice(layer.start, layer.end)
        slot[within].copy_(source[within], non_blocking=slot.is_cuda)
        placed |= {path: module.copied(weight, exact) for path, module in modules.items()}
        _settle(slot)
        progress.add_layer()
    if early is not None and is_early:
        return early
    loose = {path: m.pair for path, m in placed.items() if m.pair is not None}
    held: Mapping[str, LoraPair] = MappingProxyType(loose) if loose else pairs
    return prepare(_weights(adapter, slot.dtype, held, placed))


def _poisoned(num_elements: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """``[num_elements]`` of NaN: what reads it before it has come cannot go unseen."""
    if torch.device(device).type == "cpu":
        return own_pages(num_elements, dtype).fill_(torch.nan)
    return torch.full((num_elements,), torch.nan, dtype=dtype, device=device)


def _num_elements(layer: Layer, modules: Mapping[str, Assembled]) -> int:
    """That are copied for a layer; those of tensors that modules share once more for each."""
    others = sum(tensor.numel() for module in modules.values() for tensor in module.tensors())
    return layer.end - layer.start + others


def _settle(slot: Tensor) -> None:
    """Wait until the device has done what this thread has queued for it."""
    if slot.is_cuda:
        # Of this thread's stream alone, which others may go on filling; and without spinning.
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch has no types here
        done.record(torch.cuda.current_stream(slot.device))
        done.synchronize()


def _early(adapter: VerifiedAdapter, weights: AdapterWeights) -> EarlyAdapter:
    layers = adapter.outline.pairs.layers
    layer_of = {path: number for number, layer in enumerate(layers) for path in layer.paths}
    return EarlyAdapter(weights, adapter, MappingProxyType(layer_of))


def _weights(
    adapter: VerifiedAdapter,
    dtype: torch.dtype,
    pairs: Mapping[str, LoraPair] | PackedPairs,
    placed: Mapping[str, Assembled],
) -> AdapterWeights:
    return AdapterWeights(
        num_bytes=adapter.outline.device_bytes[dtype.itemsize],
        pairs=pairs,
        effects=MappingProxyType({p: m.effect for p, m in placed.items() if m.effect is not None}),
        parameters=MappingProxyType(
            {p: m.experts for p, m in placed.items() if m.experts is not None}
        ),
        vocab_size=adapter.layout.vocab_size,
        added_tokens=MappingProxyType({t.id: t for t in adapter.profile.added_tokens}),
    )
