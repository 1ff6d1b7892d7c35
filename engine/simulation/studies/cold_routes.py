"""What each way to go on without an adapter is worth: a skewed trace, and every request cold."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from loraplex.engine.cost_features import StepFeatures
from loraplex.engine.simulation.devices import Device, read_device
from loraplex.engine.simulation.experiment import Setup, at_load
from loraplex.engine.simulation.metrics import measure
from loraplex.engine.simulation.records import Run
from loraplex.engine.simulation.routes import Copying, Route
from loraplex.engine.simulation.studies.study import (
    Options,
    draw,
    print_table,
    simulate,
    spread,
)
from loraplex.engine.simulation.traces import TraceRequest, read_trace
from loraplex.engine.simulation.workload import AdapterMix, Requests, with_adapters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ADAPTERS, _SLOTS, _RANKS = 512, 32, (8, 16, 32, 64)
_ZIPFS = (0.9, 1.4)
_LOAD = 0.6
_RESIDENT = "all in memory"
_ROUTES: Sequence[tuple[str, Route, bool, str]] = (
    ("wait, LRU", "wait", False, "lru"),
    ("wait", "wait", False, "worth"),
    ("layer-wise", "layer-wise", False, "worth"),
    ("assist", "assist", False, "worth"),
    ("chosen", "choose", False, "worth"),
    ("wait, prefetch", "wait", True, "worth"),
    ("chosen, prefetch", "choose", True, "worth"),
)
"""Name, route, whether adapters are prefetched, and which goes."""
_COLD_TOKENS, _COLD_RANK, _NUM_COLD, _COLD_GAP_S = 512, 64, 200, 0.4
_RATIOS = (0.25, 0.5, 1.0, 2.0)
_COLD: Sequence[Route] = ("wait", "layer-wise", "assist", "choose")


def cold_routes(options: Options) -> None:
    """TRACE PROFILE: routes of cold adapters, on so many windows of a trace's tenants as there are
    seeds, spread over it and each as long as --until says, and with every request cold."""
    trace, profile = options.paths
    device = read_device(str(profile))
    windows = _windows(read_trace(trace), options.seeds, options.until_s)
    late = {zipf: _skewed(device, windows, zipf) for zipf in _ZIPFS}
    cold = _every_request_cold(device)
    draw(options.out, "cold-routes", lambda axes: _draw(axes, late, cold), 2)


def _windows(requests: Requests, number: int, until_s: float | None) -> list[Requests]:
    """So many parts of a trace, each from 0 on and of `until_s`, or together all of it."""
    apart_s = (requests[-1].arrival_s - requests[0].arrival_s) / number
    windows = []
    for from_s in (requests[0].arrival_s + i * apart_s for i in range(number)):
        to_s = from_s + (apart_s if until_s is None else min(apart_s, until_s))
        inside = (r for r in requests if from_s <= r.arrival_s <= to_s)
        windows.append(tuple(replace(r, arrival_s=r.arrival_s - from_s) for r in inside))
    return windows


def _skewed(device: Device, windows: Sequence[Requests], zipf: float) -> dict[str, float]:
    """Print the table of one skew; return each variant's mean TTFT relative to all in memory."""
    runs: dict[str, list[Run]] = {name: [] for name in (_RESIDENT, *(each[0] for each in _ROUTES))}
    for requests in windows:
        num_tenants = len({request.tenant for request in requests})
        mix = AdapterMix(round(_ADAPTERS / num_tenants), zipf, _RANKS)
        setup = Setup(device, with_adapters(requests, mix, 0))
        setup = replace(setup, requests=at_load(setup, _LOAD))
        runs[_RESIDENT].append(simulate(replace(setup, copying=Copying("none")), "fair"))
        for name, route, is_prefetched, cache in _ROUTES:
            copying = Copying("queue" if is_prefetched else "none", route=route)
            run = simulate(replace(setup, slots=_SLOTS, copying=copying), "fair", cache)
            runs[name].append(run)
    header = ("mean TTFT", "beside `wait`", "P50", "P99", "stalled beyond", "hits")
    prefetch = ("prefetch precision", "recall")
    rows = [_row(name, runs) for name in runs]
    print_table((f"Zipf {zipf}, about {_ADAPTERS} adapters", *header, *prefetch), rows)
    resident = fmean(map(_ttft_s, runs[_RESIDENT]))
    return {name: fmean(map(_ttft_s, runs[name])) / resident for name in runs if name != _RESIDENT}


def _row(name: str, runs: dict[str, list[Run]]) -> tuple[str, ...]:
    """Means over the windows, and the least and the most of two."""
    found = [measure(run) for run in runs[name]]
    # All in memory still have to come once; what stalls decodes there is subtracted.
    bases = [measure(run).interruption_share for run in runs[_RESIDENT]]
    stalled = [each.interruption_share - base for each, base in zip(found, bases, strict=True)]
    beside = [
        (_ttft_s(run) / _ttft_s(waiting) - 1) * 100
        for run, waiting in zip(runs[name], runs["wait"], strict=True)
    ]
    prefetched = any(run.prefetched.num_started for run in runs[name])
    return (
        name,
        f"{fmean(map(_ttft_s, runs[name])) * 1e3:,.0f} ms",
        "–" if name == "wait" else f"{spread(beside, 1)} %",
        f"{fmean(each.p50_ttft_s for each in found) * 1e3:,.0f} ms",
        f"{fmean(each.p99_ttft_s for each in found) * 1e3:,.0f} ms",
        f"{spread([share * 100 for share in stalled], 1)} %",
        f"{fmean(each.adapter_hit_rate for each in found):.2f}",
        f"{fmean(each.prefetch_precision for each in found):.2f}" if prefetched else "–",
        f"{fmean(each.prefetch_recall for each in found):.2f}" if prefetched else "–",
    )


def _every_request_cold(device: Device) -> dict[Route, list[float]]:
    """Print how much later each route is than an adapter that is there, by load ÷ prefill: of the
    second half of the requests, so that step times and routes are learned."""
    tokens = _COLD_TOKENS
    step = StepFeatures(tokens, 0, tokens, float(tokens**2), 0.0, 0, _COLD_RANK, 1)
    prefill_s = device.times.step_ms(step) / 1e3
    late: dict[Route, list[float]] = {route: [] for route in _COLD}
    for ratio in _RATIOS:
        rate = _COLD_RANK * device.bytes_per_rank / (ratio * prefill_s)
        setup = Setup(replace(device, copy_bytes_per_s=rate), _alone(), slots=4)
        for route, found in late.items():
            run = simulate(replace(setup, copying=Copying("none", route=route)), "fcfs")
            found.append(_ttft_s(run, _NUM_COLD // 2) / (prefill_s + device.response_ms / 1e3))
    rows = [(route, *(f"{value:.2f}" for value in found)) for route, found in late.items()]
    print_table(("TTFT ÷ resident, load ÷ prefill", *map(str, _RATIOS)), rows)
    return late


def _alone() -> Requests:
    """Requests that do not meet, each on an adapter that nobody has used."""
    return tuple(
        TraceRequest(i * _COLD_GAP_S, "t", _COLD_TOKENS, 1, adapter=f"a{i}", rank=_COLD_RANK)
        for i in range(_NUM_COLD)
    )


def _ttft_s(run: Run, first: int = 0) -> float:
    """Mean, of the requests from the `first` on."""
    return fmean(record.ttft_s for record in run.records[first:] if record.ttft_s is not None)


def _draw(
    axes: Sequence["Axes"], late: dict[float, dict[str, float]], cold: dict[Route, list[float]]
) -> None:
    width = 0.8 / len(late)
    for number, (zipf, found) in enumerate(late.items()):
        places = np.arange(len(found)) + number * width
        axes[0].bar(places, list(found.values()), width, label=f"Zipf {zipf}")
    names = list(next(iter(late.values())))
    axes[0].set_xticks(np.arange(len(names)) + 0.2, names, rotation=30, ha="right", fontsize=7)
    axes[0].set_ylabel("mean TTFT ÷ all in memory")
    axes[0].legend(frameon=False, fontsize=7)
    for route, values in cold.items():
        axes[1].plot(_RATIOS, values, "o-", label=route, markersize=4)
    axes[1].set_xlabel("load ÷ prefill, every request cold")
    axes[1].set_ylabel("TTFT ÷ resident")
    axes[1].legend(frameon=False, fontsize=7)
