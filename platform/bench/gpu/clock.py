"""Times on the card, without what launches from Python cost."""

from collections.abc import Callable
from time import perf_counter

import torch

_SETTLE = 3
"""Runs before a capture: kernels are compiled, and libraries make their workspaces."""

Run = Callable[[], object]


def captured(run: Run) -> Run:
    """Return what replays ``run``, recorded as a graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types here
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_SETTLE):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def median_ms(run: Run, device: torch.device, repeats: int = 20) -> float:
    """Median time of ``run`` by the card's own clock; of a CPU, that of one run."""
    if device.type != "cuda":
        return _host_ms(run)
    run()
    times = [_elapsed_ms(run) for _ in range(repeats)]
    return sorted(times)[repeats // 2]


def device_ms(run: Run, device: torch.device, repeats: int = 20) -> float:
    """The same of a graph of it."""
    return median_ms(captured(run) if device.type == "cuda" else run, device, repeats)


def wall_ms(run: Run, device: torch.device, repeats: int = 20) -> float:
    """Median time that the host waits for ``run`` to be done: its launches are in it."""
    if device.type != "cuda":
        return _host_ms(run)
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        started = perf_counter()
        run()
        torch.cuda.synchronize()
        times.append((perf_counter() - started) * 1e3)
    return sorted(times[1:])[repeats // 2]


def _elapsed_ms(run: Run) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # as above
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def _host_ms(run: Run) -> float:
    """Once: where a CPU stands for the card, times only show that all of it runs."""
    started = perf_counter()
    run()
    return (perf_counter() - started) * 1e3
