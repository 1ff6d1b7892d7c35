"""VTC's real trace on VTC's device: all policies, and the quantum from small to large."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from loraplex.engine.simulation.devices import a10g_llama2_7b
from loraplex.engine.simulation.experiment import FAIR, Setup
from loraplex.engine.simulation.fluid import fluid_waits_s
from loraplex.engine.simulation.metrics import Metrics, WindowedService, measure
from loraplex.engine.simulation.records import Run
from loraplex.engine.simulation.studies.study import (
    COLOURS,
    Options,
    draw,
    print_table,
    simulate,
    spread,
)
from loraplex.engine.simulation.traces import read_trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POLICIES = ("slora", "vtc", "dlpm", "chameleon", "fcfs", "fair-tokens", "fair")
QUANTA_MS = (50, 500, 2000, 5000, 10_000, 20_000, 50_000)
_NOISE = 0.02
_SHOWN_TENANTS = 8


def policies(options: Options) -> None:
    """TRACE: a table of all policies, what no fair policy can do better, service over time."""
    runs = {
        policy: [simulate(_setup(options, seed), policy) for seed in range(max(1, options.seeds))]
        for policy in options.policies or POLICIES
    }
    header = (
        "policy",
        "tokens/s",
        "P50 TTFT",
        "P99 TTFT",
        "P99 TPOT",
        "MaxDiff",
        "AvgDiff",
        "Jain, satisfied",
        "wait ÷ fair",
        "pushed out",
    )
    print_table(header, (_row(policy, each) for policy, each in runs.items()))
    _print_fluid(runs[next(reversed(runs))][0])
    shown = {
        policy: each[0] for policy, each in runs.items() if policy not in {"slora", "fair-tokens"}
    }
    draw(options.out, "service-over-time", lambda axes: _draw_service(axes, shown), len(shown), 2.6)


def frontier(options: Options) -> None:
    """TRACE: MaxDiff, tokens/s and P99 TTFT as the quantum grows, with the other policies."""
    points: dict[str, list[Metrics]] = {}
    seeds = range(max(1, options.seeds))
    for quantum_ms in QUANTA_MS:
        fair = replace(FAIR, quantum_ms=float(quantum_ms))
        setups = (replace(_setup(options, seed), fair=fair) for seed in seeds)
        points[f"{quantum_ms:,} ms"] = [measure(simulate(setup, "fair")) for setup in setups]
    for policy in options.policies or ("slora", "vtc", "dlpm", "fcfs"):
        points[policy] = [measure(simulate(_setup(options, s), policy)) for s in seeds]
    rows = [
        (
            name,
            spread([m.max_diff for m in each]),
            f"{fmean(m.avg_diff for m in each):.0f}",
            f"{fmean(m.tokens_per_s for m in each):.0f}",
            f"{fmean(m.p99_ttft_s for m in each):.0f} s",
            f"{fmean(m.p99_tpot_s for m in each):.2f} s",
        )
        for name, each in points.items()
    ]
    print_table(("quantum", "MaxDiff", "AvgDiff", "tokens/s", "P99 TTFT", "P99 TPOT"), rows)
    draw(options.out, "frontier", lambda axes: _draw_frontier(axes, points), 2)


def _setup(options: Options, seed: int) -> Setup:
    noise = _NOISE if options.seeds > 1 else 0.0
    return Setup(a10g_llama2_7b(), read_trace(options.paths[0]), noise=noise, seed=seed)


def _row(policy: str, runs: Sequence[Run]) -> tuple[str, ...]:
    metrics = [measure(run) for run in runs]
    return (
        f"`{policy}`",
        f"{fmean(m.tokens_per_s for m in metrics):.0f}",
        f"{fmean(m.p50_ttft_s for m in metrics):.1f} s",
        f"{fmean(m.p99_ttft_s for m in metrics):.0f} s",
        f"{fmean(m.p99_tpot_s for m in metrics):.2f} s",
        spread([m.max_diff for m in metrics]),
        f"{fmean(m.avg_diff for m in metrics):.0f}",
        f"{fmean(m.jain_satisfied for m in metrics):.3f}",
        f"{fmean(m.max_wait_over_fair for m in metrics):.1f}",
        f"{fmean(run.num_preempted for run in runs):,.0f}",
    )


def _print_fluid(run: Run) -> None:
    """Waits if the machine were a fluid that did the same work: in one queue, and shared."""
    records = sorted(run.records, key=lambda record: record.arrival_s)
    work = [(r.arrival_s, r.tenant, r.machine_ms / 1e3) for r in records]
    in_turn = fluid_waits_s([(at, "", seconds) for at, _, seconds in work])
    rows = [
        (name, *(f"{np.percentile(waits, percent):.1f} s" for percent in (50, 99)))
        for name, waits in (("first come", in_turn), ("shared evenly", fluid_waits_s(work)))
    ]
    print_table(("fluid machine", "P50 wait", "P99 wait"), rows)
    sys.stdout.flush()


def _draw_service(axes: Sequence["Axes"], runs: dict[str, Run]) -> None:
    for each, (policy, run) in zip(axes, runs.items(), strict=True):
        records = [record for record in run.records if record.first_token_s is not None]
        service = WindowedService(records, run.last_arrival_s)
        served = np.array([service.served(at - 30, at + 30) for at in service.middles])
        largest = np.argsort(-served.sum(axis=0))[:_SHOWN_TENANTS]
        for tenant in sorted(largest.tolist()):
            each.plot(service.middles, served[:, tenant], linewidth=1)
        each.set_title(policy)
        each.set_xlabel("seconds")
        each.set_ylim(0, 600)
    axes[0].set_ylabel("service per second")


def _draw_frontier(axes: Sequence["Axes"], points: dict[str, list[Metrics]]) -> None:
    named = {name: each for name, each in points.items() if name in COLOURS}
    fair = [each for name, each in points.items() if name not in COLOURS]
    for diagram, field in zip(axes, ("tokens_per_s", "p99_ttft_s"), strict=True):

        def at(each: list[Metrics], field: str = field) -> tuple[float, float]:
            return fmean(m.max_diff for m in each), fmean(getattr(m, field) for m in each)

        xs, ys = zip(*map(at, fair), strict=True)
        diagram.plot(xs, ys, "o-", color=COLOURS["fair"], label="fair", markersize=4)
        labels = [name for name in points if name not in COLOURS]
        for label, x, y in zip(labels, xs, ys, strict=True):
            diagram.annotate(label, (x, y), fontsize=6, xytext=(3, 3), textcoords="offset points")
        for name, each in named.items():
            diagram.plot(*at(each), "s", color=COLOURS[name], label=name)
        diagram.set_xlabel("MaxDiff (less is fairer)")
    axes[0].set_ylabel("tokens/s")
    axes[1].set_ylabel("P99 TTFT, seconds")
    axes[0].legend(frameon=False, fontsize=7)
