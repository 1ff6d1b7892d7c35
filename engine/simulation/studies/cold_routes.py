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
from loraplex.engine.simulation.studies.study import Options, draw, print_table, simulate
from loraplex.engine.simulation.traces import TraceRequest, read_trace
from loraplex.engine.simulation.workload import AdapterMix, Requests, scaled, with_adapters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ADAPTERS, _SLOTS, _RANKS = 512, 32, (8, 16, 32, 64)
_ZIPFS = (0.9, 1.4)
_LOAD = 0.6
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
    """TRACE PROFILE: routes of cold adapters, on a trace's tenants and with every request cold."""
    trace, profile = options.paths
    device = read_device(str(profile))
    requests = scaled(read_trace(trace), 1.0, options.until_s)
    late = {zipf: _skewed(device, requests, zipf) for zipf in _ZIPFS}
    cold = _every_request_cold(device)
    draw(options.out, "cold-routes", lambda axes: _draw(axes, late, cold), 2)


def _skewed(device: Device, requests: Requests, zipf: float) -> dict[str, float]:
    """Print the table of one skew; return each variant's mean TTFT relative to all in memory."""
    num_tenants = len({request.tenant for request in requests})
    mix = AdapterMix(round(_ADAPTERS / num_tenants), zipf, _RANKS)
    setup = Setup(device, with_adapters(requests, mix, 0))
    setup = replace(setup, requests=at_load(setup, _LOAD))
    resident = simulate(replace(setup, copying=Copying("none")), "fair")
    # All in memory still have to come once; what stalls decodes there is subtracted.
    base = measure(resident).interruption_share
    rows = [_row("all in memory", resident, base)]
    late = {}
    for name, route, is_prefetched, cache in _ROUTES:
        copying = Copying("queue" if is_prefetched else "none", route=route)
        run = simulate(replace(setup, slots=_SLOTS, copying=copying), "fair", cache)
        rows.append(_row(name, run, base))
        late[name] = _ttft_s(run) / _ttft_s(resident)
    header = ("mean TTFT", "P50", "P99", "stalled beyond", "hits")
    prefetch = ("prefetch precision", "recall", "wasted")
    print_table((f"Zipf {zipf}, {mix.per_tenant * num_tenants} adapters", *header, *prefetch), rows)
    return late


def _row(name: str, run: Run, base: float) -> tuple[str, ...]:
    metrics = measure(run)
    prefetched = run.prefetched.num_started > 0
    return (
        name,
        f"{_ttft_s(run) * 1e3:,.0f} ms",
        f"{metrics.p50_ttft_s * 1e3:,.0f} ms",
        f"{metrics.p99_ttft_s * 1e3:,.0f} ms",
        f"{(metrics.interruption_share - base) * 100:+.1f} %",
        f"{metrics.adapter_hit_rate:.2f}",
        f"{metrics.prefetch_precision:.2f}" if prefetched else "–",
        f"{metrics.prefetch_recall:.2f}" if prefetched else "–",
        f"{metrics.prefetch_wasted_bytes / 1e9:.1f} GB" if prefetched else "–",
    )


def _every_request_cold(device: Device) -> dict[Route, list[float]]:
    """Print how much later each route is than an adapter that is there, by load ÷ prefill."""
    tokens = _COLD_TOKENS
    step = StepFeatures(tokens, 0, tokens, float(tokens**2), 0.0, 0, _COLD_RANK, 1)
    prefill_s = device.times.step_ms(step) / 1e3
    late: dict[Route, list[float]] = {route: [] for route in _COLD}
    for ratio in _RATIOS:
        rate = _COLD_RANK * device.bytes_per_rank / (ratio * prefill_s)
        setup = Setup(replace(device, copy_bytes_per_s=rate), _alone(), slots=4)
        for route, found in late.items():
            run = simulate(replace(setup, copying=Copying("none", route=route)), "fcfs")
            found.append(_ttft_s(run) / (prefill_s + device.response_ms / 1e3))
    rows = [(route, *(f"{value:.2f}" for value in found)) for route, found in late.items()]
    print_table(("TTFT ÷ resident, load ÷ prefill", *map(str, _RATIOS)), rows)
    return late


def _alone() -> Requests:
    """Requests that do not meet, each on an adapter that nobody has used."""
    return tuple(
        TraceRequest(i * _COLD_GAP_S, "t", _COLD_TOKENS, 1, adapter=f"a{i}", rank=_COLD_RANK)
        for i in range(_NUM_COLD)
    )


def _ttft_s(run: Run) -> float:
    return fmean(record.ttft_s for record in run.records if record.ttft_s is not None)


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
