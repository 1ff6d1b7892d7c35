"""Prints what adapters add to the linear layers of a 7B model: one adapter against many."""

from collections.abc import Callable, Iterator
from itertools import accumulate, cycle, islice, pairwise

import torch

from loraplex.kernels.lora import LoraSegment, add_lora
from loraplex.kernels.segments import ModuleSegments, TableRows, lora_table, step_segments

SHAPES = [*[(4096, 4096)] * 4, *[(11008, 4096)] * 2, (4096, 11008)]  # (out, in) of one layer
NUM_LAYERS = 4  # enough that no cache holds the weights from one pass to the next
DTYPE = torch.bfloat16
CASES = [  # rows, adapters, ranks
    (32, 1, (16,)),
    (32, 8, (16,)),
    (32, 32, (16,)),
    (32, 32, (8, 16, 32, 64)),
    (2048, 1, (16,)),
    (2048, 8, (16,)),
    (2048, 8, (8, 16, 32, 64)),
]


def make_segments(rows: int, adapters: int, ranks: tuple[int, ...]) -> list[ModuleSegments]:
    """Equal shares of the rows for each adapter, in each layer and module."""
    bounds = pairwise([0, *accumulate([rows // adapters] * adapters)])
    device, shapes = torch.device("cuda"), SHAPES * NUM_LAYERS

    def pairs(rank: int) -> Iterator[LoraSegment]:
        for out_width, in_width in shapes:
            a = torch.randn(rank, in_width, dtype=DTYPE, device=device)
            b = torch.randn(out_width, rank, dtype=DTYPE, device=device)
            yield LoraSegment(0, 0, a, b, 0.01)

    step = step_segments(
        [
            TableRows(start, end, lora_table([*pairs(rank)], shapes, dtype=DTYPE, device=device))
            for (start, end), rank in zip(bounds, islice(cycle(ranks), adapters), strict=True)
        ]
    )
    return [at for module in range(len(shapes)) if (at := step.at(module)) is not None]


def milliseconds(work: Callable[[], None], repeats: int = 20) -> float:
    """Median time of a captured graph, so that launches from Python do not count."""
    work()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[repeats // 2]


def measure(rows: int, adapters: int, ranks: tuple[int, ...]) -> tuple[float, float]:
    """Milliseconds of the layers without adapters, and with."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    weights = [torch.randn(s, dtype=DTYPE, device=device) for s in SHAPES * NUM_LAYERS]
    inputs = {
        width: torch.randn(rows, width, dtype=DTYPE, device=device) for width in (4096, 11008)
    }
    segments = make_segments(rows, adapters, ranks)

    def base() -> None:
        for weight in weights:
            torch.nn.functional.linear(inputs[weight.shape[1]], weight)

    def with_adapters() -> None:
        for weight, at in zip(weights, segments, strict=True):
            x = inputs[weight.shape[1]]
            add_lora(torch.nn.functional.linear(x, weight), x, at)

    return milliseconds(base), milliseconds(with_adapters)


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, {DTYPE}, {NUM_LAYERS} layers of a 7B model")
    print("rows  adapters  ranks            base ms  with ms  with/base  one adapter/this")
    one_adapter = 0.0
    for rows, adapters, ranks in CASES:
        base_ms, with_ms = measure(rows, adapters, ranks)
        if adapters == 1:
            one_adapter = with_ms
        shown = "/".join(map(str, ranks))
        print(
            f"{rows:4}  {adapters:8}  {shown:15}  {base_ms:7.3f}  {with_ms:7.3f}"
            f"  {with_ms / base_ms:9.2f}  {one_adapter / with_ms:16.2f}"
        )


if __name__ == "__main__":
    main()
