"""What it takes to bring an adapter to the card, and what the host could compute meanwhile."""

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from loraplex.platform.bench.gpu.ceilings import PINNED
from loraplex.platform.bench.gpu.clock import wall_ms
from loraplex.platform.bench.gpu.layers import DTYPE, LLAMA_7B
from loraplex.platform.bench.gpu.records import Fact, Ratio, Record, Time
from loraplex.platform.bench.gpu.stage import Setup

RANKS = (8, 16, 32, 64)
TOKENS = (16, 64, 256, 1024)
_NUM_LAYERS = 32


class _Adapter(NamedTuple):
    """An adapter of a 7B model in the host's memory, and room for it on the card."""

    on_host: list[Tensor]
    on_card: list[Tensor]

    @property
    def num_bytes(self) -> int:
        """Of all weights."""
        return sum(tensor.nbytes for tensor in self.on_host)

    def copy(self) -> None:
        """Queue the copy, tensor by tensor, as the engine's transfers do it."""
        for card, host in zip(self.on_card, self.on_host, strict=True):
            card.copy_(host, non_blocking=True)


def loads(setup: Setup) -> Iterator[Record]:
    """Copy adapters by rank, pinned and not, and one of each rank as one piece."""
    num_layers = 2 if setup.small else _NUM_LAYERS
    for rank in RANKS[:1] if setup.small else RANKS:
        pinned = _adapter(rank, num_layers, setup, is_pinned=setup.on_gpu)
        plain = _Adapter([tensor.clone() for tensor in pinned.on_host], pinned.on_card)
        mib = pinned.num_bytes / 2**20
        yield Fact(f"adapter r{rank} of a 7B model, MiB", mib)
        floor = None
        if setup.facts.get(PINNED):
            floor = pinned.num_bytes / setup.facts[PINNED] / 1e6
        pinned_ms = wall_ms(pinned.copy, setup.device, 5)
        yield Time(f"load r{rank}, pinned", pinned_ms, floor)
        yield Time(f"load r{rank}, pageable", wall_ms(plain.copy, setup.device, 5), floor)
        whole = torch.cat([tensor.flatten() for tensor in pinned.on_host])
        joined = _Adapter([whole.pin_memory() if setup.on_gpu else whole], [whole.to(setup.device)])
        joined_ms = wall_ms(joined.copy, setup.device, 5)
        yield Time(f"load r{rank}, pinned, as one piece", joined_ms, floor)
        yield Ratio(f"load r{rank}: bandwidth as one piece ÷ by tensors", pinned_ms / joined_ms)


@torch.inference_mode()
def assist(setup: Setup) -> Iterator[Record]:
    """Compute a prompt's updates of one layer on the host, beside copying that layer's weights.

    The host helps where a layer's rows have gone there, been computed and come back before the
    layer's weights are there; both go on layer by layer, so that a model's number of layers changes
    nothing in their ratio.
    """
    yield Fact("threads of the host", float(torch.get_num_threads()))
    tokens = TOKENS[:1] if setup.small else TOKENS
    there_and_back_ms = {count: _rows_ms(count, setup) for count in tokens}
    for count, taken_ms in there_and_back_ms.items():
        yield Time(f"rows of one layer to the host and back, {count} tokens", taken_ms)
    for rank in RANKS[:1] if setup.small else RANKS:
        layer = _adapter(rank, 1, setup, is_pinned=setup.on_gpu)
        copy_ms = wall_ms(layer.copy, setup.device, 10)
        yield Time(f"copy one layer of r{rank}", copy_ms)
        weights = [tensor.float() for tensor in layer.on_host]
        inputs = {width: torch.randn(max(tokens), width) for _, width in _modules(setup)}
        crossover = 0
        for count in tokens:
            host_ms = _host_ms(weights, [x[:count] for x in inputs.values()])
            yield Time(f"updates of one layer on the host, r{rank}, {count} tokens", host_ms)
            ratio = (host_ms + there_and_back_ms[count]) / copy_ms
            yield Ratio(f"host with rows there and back ÷ copy, r{rank}, {count} tokens", ratio)
            crossover = count if ratio <= 1 else crossover
        yield Fact(f"most tokens at which the host is no slower than the copy, r{rank}", crossover)


def _rows_ms(count: int, setup: Setup) -> float:
    """Time to copy what one layer's modules see to the host, and what they are to add back."""
    modules = _modules(setup)
    seen, added = sum({width for _, width in modules}), sum(width for width, _ in modules)
    rows = [torch.empty(count, width, dtype=DTYPE, device=setup.device) for width in (seen, added)]
    hosts = [torch.empty(r.shape, dtype=DTYPE, pin_memory=setup.on_gpu) for r in rows]

    def copy() -> None:
        hosts[0].copy_(rows[0], non_blocking=True)
        rows[1].copy_(hosts[1], non_blocking=True)

    return wall_ms(copy, setup.device, 10)


def _modules(setup: Setup) -> Sequence[tuple[int, int]]:
    return [(53, 37), (37, 53)] if setup.small else LLAMA_7B.modules


def _adapter(rank: int, num_layers: int, setup: Setup, *, is_pinned: bool) -> _Adapter:
    host = [
        torch.randn(shape, dtype=torch.float32).to(DTYPE)
        for out_width, in_width in [*_modules(setup)] * num_layers
        for shape in ((rank, in_width), (out_width, rank))
    ]
    host = [tensor.pin_memory() for tensor in host] if is_pinned else host
    return _Adapter(host, [torch.empty_like(t, device=setup.device) for t in host])


def _host_ms(weights: Sequence[Tensor], inputs: Sequence[Tensor]) -> float:
    """Least time of three to compute ``b (a x)`` of each module in float32."""
    by_width = {x.shape[1]: x for x in inputs}
    times = []
    for _ in range(3):
        started = perf_counter()
        for a, b in zip(weights[::2], weights[1::2], strict=True):
            _ = (by_width[a.shape[1]] @ a.T) @ b.T
        times.append((perf_counter() - started) * 1e3)
    return min(times)
