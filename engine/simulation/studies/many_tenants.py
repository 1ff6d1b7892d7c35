"""Many tenants at 1.2 times what the device can do, one of whom sends ten times as much."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from loraplex.engine.cost_features import Floats
from loraplex.engine.simulation.devices import read_device
from loraplex.engine.simulation.experiment import Setup, at_load
from loraplex.engine.simulation.fluid import fluid_waits_s
from loraplex.engine.simulation.metrics import measure
from loraplex.engine.simulation.records import Record, Run
from loraplex.engine.simulation.shares import below_share
from loraplex.engine.simulation.studies.study import (
    COLOURS,
    Options,
    draw,
    print_table,
    simulate,
)
from loraplex.engine.simulation.traces import read_trace
from loraplex.engine.simulation.workload import (
    AdapterMix,
    bursting_tenant,
    scaled,
    with_adapters,
    with_burst,
    with_cancellations,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POLICIES = ("fair", "fcfs", "vtc", "dlpm", "chameleon", "skip-scan", "drain")
_LOAD, _BURST, _CANCELLED, _NOISE, _SLOTS, _ADAPTERS = 1.2, 10, 0.05, 0.05, 64, 4


def many_tenants(options: Options) -> None:
    """TRACE PROFILE: a table of all policies with and without the burst; TTFTs as a picture."""
    trace, profile = options.paths
    requests = scaled(read_trace(trace), 1.0, options.until_s)
    requests = with_adapters(requests, AdapterMix(_ADAPTERS), 0)
    setup = Setup(read_device(str(profile)), requests, slots=_SLOTS, noise=_NOISE)
    setup = replace(setup, requests=at_load(setup, _LOAD))
    burster = bursting_tenant(setup.requests)
    runs: dict[str, tuple[Run, Run]] = {}
    for policy in options.policies or POLICIES:
        calm, burst = (simulate(_with(setup, factor, 0), policy) for factor in (1, _BURST))
        runs[policy] = (calm, burst)
    first = next(iter(runs.values()))
    below = below_share(first[1], setup.requests[-1].arrival_s) - {burster}
    print_table(
        ("tenants", "below their share", "requests calm, burst", "of those below"),
        [
            (
                f"{len({r.tenant for r in setup.requests})}",
                f"{len(below)}",
                ", ".join(f"{len(run.records):,}" for run in first),
                ", ".join(f"{sum(r.tenant in below for r in run.records):,}" for run in first),
            )
        ],
    )
    _print_waits(runs, below)
    _print_others(runs)
    cdfs = {policy: [_ttft(run, below) for run in both] for policy, both in runs.items()}
    draw(options.out, "ttft-many-tenants", lambda axes: _draw_ttft(axes, cdfs), 2)


def _with(setup: Setup, factor: int, seed: int) -> Setup:
    requests = with_burst(setup.requests, factor, seed)
    return replace(setup, requests=with_cancellations(requests, _CANCELLED, seed), seed=seed)


def _print_waits(runs: Mapping[str, tuple[Run, Run]], below: set[str]) -> None:
    """TTFT of tenants below their share, and the waits of a fluid that does the same work."""
    header = ("policy", "P50 calm, burst", "P99 calm, burst", "ratio of P99")
    rows = []
    for policy, both in runs.items():
        late = [float(np.percentile(_lateness(run, below), 99)) for run in both]
        ttft = [_ttft(run, below) for run in both]
        rows.append(_wait_row(f"`{policy}`", ttft, f"{late[0]:.0f}, {late[1]:.0f} s"))
        if policy == "fair":
            fluid = [_fluid(run, below) for run in both]
            rows.append(_wait_row("fluid, shared evenly", fluid, "–"))
    print_table((*header, "later than fluid, P99"), rows)


def _wait_row(name: str, both: Sequence[Floats], late: str) -> tuple[str, ...]:
    p50, p99 = ([float(np.percentile(each, p)) for each in both] for p in (50, 99))
    return (
        name,
        ", ".join(f"{value:.2f}" for value in p50) + " s",
        ", ".join(f"{value:.0f}" for value in p99) + " s",
        f"{p99[1] / p99[0]:.2f}" if p99[0] else "–",
        late,
    )


def _print_others(runs: Mapping[str, tuple[Run, Run]]) -> None:
    header = (
        "policy, with the burst",
        "tokens/s",
        "Jain, satisfied",
        "MaxDiff",
        "P99 TPOT",
        "wait ÷ fair, calm and burst",
        "overtaken",
        "pushed out",
        "hits",
        "interrupted",
    )
    rows = []
    for policy, both in runs.items():
        calm, burst = map(measure, both)
        rows.append(
            (
                f"`{policy}`",
                f"{burst.tokens_per_s:,.0f}",
                f"{burst.jain_satisfied:.2f}",
                f"{burst.max_diff:,.0f}",
                f"{burst.p99_tpot_s:.2f} s",
                f"{calm.max_wait_over_fair:.1f}, {burst.max_wait_over_fair:.1f}",
                f"{burst.max_skips:,}",
                f"{both[1].num_preempted:,}",
                f"{burst.adapter_hit_rate:.3f}",
                f"{burst.interruption_share:.0%}",
            )
        )
    print_table(header, rows)


def _ttft(run: Run, tenants: set[str]) -> Floats:
    return np.array([r.ttft_s for r in run.records if r.tenant in tenants and r.ttft_s is not None])


def _fluid(run: Run, tenants: set[str]) -> Floats:
    return np.array([wait_s for record, wait_s in _fluid_waits(run) if record.tenant in tenants])


def _lateness(run: Run, tenants: set[str]) -> Floats:
    """How much later than in the fluid machine first tokens came."""
    late = (
        record.ttft_s - wait_s
        for record, wait_s in _fluid_waits(run)
        if record.tenant in tenants and record.ttft_s is not None
    )
    return np.fromiter((max(0.0, ms) for ms in late), float)


def _fluid_waits(run: Run) -> list[tuple[Record, float]]:
    records: list[Record] = sorted(run.records, key=lambda record: record.arrival_s)
    waits = fluid_waits_s([(r.arrival_s, r.tenant, r.machine_ms / 1e3) for r in records])
    return list(zip(records, waits, strict=True))


def _draw_ttft(axes: Sequence["Axes"], cdfs: Mapping[str, Sequence[Floats]]) -> None:
    for diagram, which, title in zip(axes, (0, 1), ("calm", "one tenant × 10"), strict=True):
        for policy, both in cdfs.items():
            seconds = np.quantile(both[which], np.linspace(0, 1, 201))
            diagram.plot(seconds, np.linspace(0, 1, 201), color=COLOURS[policy], label=policy)
        diagram.set_xscale("symlog", linthresh=1)
        diagram.set_xlabel("TTFT of tenants below their share, seconds")
        diagram.set_title(title)
    axes[0].set_ylabel("share of requests")
    axes[0].legend(frameon=False, fontsize=7)
