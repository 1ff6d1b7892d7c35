"""What adapters cost: one slot that two want, and which goes when memory is needed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from loraplex.engine.simulation.devices import read_device
from loraplex.engine.simulation.experiment import CACHES, Setup, at_load
from loraplex.engine.simulation.metrics import measure
from loraplex.engine.simulation.records import Run
from loraplex.engine.simulation.studies.study import Options, draw, print_table, simulate
from loraplex.engine.simulation.traces import TraceRequest, read_trace
from loraplex.engine.simulation.workload import (
    AdapterMix,
    Generated,
    Requests,
    generate,
    scaled,
    with_adapters,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POLICIES = ("skip-scan", "fcfs", "drain", "vtc", "dlpm", "chameleon", "fair")
SLOTS = (8, 16, 32, 64)
_HOT_PER_S, _COLD_PER_S, _SECONDS, _RANK = 6.0, 0.2, 300.0, 16


def one_slot(options: Options) -> None:
    """PROFILE: 6 requests a second for one adapter, 0.2 for another, and room for one of them."""
    setup = Setup(read_device(str(options.paths[0])), _hot_and_cold(), slots=1)
    rows = []
    for policy in options.policies or POLICIES:
        run = simulate(setup, policy)
        metrics = measure(run)
        rows.append(
            (
                f"`{policy}`",
                f"{run.num_loads}",
                f"{metrics.adapter_hit_rate:.2f}",
                *(f"{_p99_ttft_s(run, tenant):,.1f} s" for tenant in ("hot", "cold")),
                f"{metrics.tokens_per_s:,.0f}",
            )
        )
    header = ("policy", "loads", "hit rate", "P99 TTFT hot", "P99 TTFT cold", "tokens/s")
    print_table(header, rows)


def caches(options: Options) -> None:
    """TRACE PROFILE: bytes that requests waited for, by slots and by who goes first."""
    trace, profile = options.paths
    requests = scaled(read_trace(trace), 1.0, options.until_s)
    requests = with_adapters(requests, AdapterMix(4), 0)
    setup = Setup(read_device(str(profile)), requests)
    setup = replace(setup, requests=at_load(setup, 0.8))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CACHES}
    for slots in SLOTS:
        for name, points in found.items():
            run = simulate(replace(setup, slots=slots), "fair", name)
            points.append((run.critical_bytes / 1e9, measure(run).adapter_hit_rate))
    best = [gigabytes for gigabytes, _ in found["belady"]]
    rows = [
        (
            str(slots),
            *(
                f"{points[i][0]:,.0f} ({points[i][0] / best[i]:.2f}; hits {points[i][1]:.2f})"
                for points in found.values()
            ),
        )
        for i, slots in enumerate(SLOTS)
    ]
    print_table(("slots", *found), rows)
    draw(options.out, "cache-bytes", lambda axes: _draw_bytes(axes, found))


def _hot_and_cold() -> Requests:
    requests: list[TraceRequest] = []
    for seed, (tenant, rate) in enumerate((("hot", _HOT_PER_S), ("cold", _COLD_PER_S))):
        spec = Generated(1, rate, _SECONDS, mean_prompt_tokens=300.0, mean_output_tokens=100.0)
        requests += [
            replace(r, tenant=tenant, adapter=f"{tenant}'s", rank=_RANK)
            for r in generate(spec, seed)
        ]
    return tuple(sorted(requests, key=lambda request: request.arrival_s))


def _p99_ttft_s(run: Run, tenant: str) -> float:
    ttft = [r.ttft_s for r in run.records if r.tenant == tenant and r.ttft_s is not None]
    return float(np.percentile(ttft, 99))


def _draw_bytes(axes: Sequence["Axes"], found: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    width = 0.8 / len(found)
    places = np.arange(len(SLOTS))
    for number, (name, points) in enumerate(found.items()):
        values = [gigabytes for gigabytes, _ in points]
        axes[0].bar(places + number * width, values, width, label=name)
    axes[0].set_xticks(places + 0.4 - width / 2, [f"{slots} slots" for slots in SLOTS])
    axes[0].set_ylabel("GB that requests waited for")
    axes[0].legend(frameon=False)
