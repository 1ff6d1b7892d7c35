"""`loraplex simulate`: what the scheduler would do with a load, on a device that is not here."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from loraplex.platform.cli.context import AsJson, failure
from loraplex.platform.cli.output import print_json, print_table

if TYPE_CHECKING:
    from loraplex.engine.simulation.devices import Device
    from loraplex.engine.simulation.experiment import Setup
    from loraplex.engine.simulation.metrics import Metrics
    from loraplex.engine.simulation.traces import TraceRequest
    from loraplex.engine.simulation.workload import Generated

_GENERATED = "generated"

Trace = Annotated[
    str,
    typer.Option(help="A trace's path (VTC, ServeGen, Azure, Mooncake), or `generated`."),
]
Profile = Annotated[
    str,
    typer.Option(help="`a10g-llama2-7b`, or the path of a vidur table or a saved cost model."),
]
Policy = Annotated[
    str,
    typer.Option(help="fair, fair-tokens, fcfs, slora, vtc, dlpm, skip-scan, drain or chameleon."),
]
Cache = Annotated[
    str,
    typer.Option(help="Which goes: worth (ours), lru, lfu, gdsf, chameleon, pinned or belady."),
]
Prefetch = Annotated[
    Literal["none", "queue", "all"],
    typer.Option(help="Adapters loaded ahead: none, of the queue, or all that are expected."),
]
Transfers = Annotated[
    float | None,
    typer.Option(
        min=0.001, max=1e9, help="MB of adapters that may be on their way; default a quarter."
    ),
]
AdapterRoute = Annotated[
    Literal["choose", "wait", "layer-wise", "assist", "inside"],
    typer.Option(help="How requests go on whose adapter is coming; inside: steps wait for it."),
]
CopyRate = Annotated[
    float | None, typer.Option(min=0.001, help="GB/s of the link; default the profile's.")
]
Slots = Annotated[
    int | None, typer.Option(min=1, help="Adapters of the largest rank that fit; default all.")
]
Load = Annotated[
    float | None,
    typer.Option(min=0.01, max=100, help="Squeeze arrivals to this share of what it can do."),
]
Until = Annotated[
    float | None, typer.Option(min=0.001, help="Only requests of the first so many seconds.")
]
Adapters = Annotated[
    int, typer.Option(min=0, max=1000, help="Adapters of each tenant; 0: the base model.")
]
Zipf = Annotated[
    float, typer.Option(min=0, max=5, help="Skew of the popularity of a tenant's adapters.")
]
Ranks = Annotated[str, typer.Option(help="Ranks of adapters, by commas.")]
Burst = Annotated[
    int, typer.Option(min=1, max=1000, help="One tenant sends so many times as much.")
]
Cancel = Annotated[float, typer.Option(min=0, max=1, help="Share of requests whose clients leave.")]
Tenants = Annotated[int, typer.Option(min=1, max=5000, help="Generated: tenants.")]
Rate = Annotated[float, typer.Option(min=0.001, max=10_000, help="Generated: requests a second.")]
Duration = Annotated[float, typer.Option(min=1, max=10_000_000, help="Generated: seconds.")]
Burstiness = Annotated[
    float, typer.Option(min=0.1, max=20, help="Generated: variation of gaps; 1 is Poisson.")
]
Active = Annotated[
    float, typer.Option(min=0.01, max=1, help="Generated: part of the time a tenant is on.")
]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, help="Cap that requests name; default: longest output.")
]
Noise = Annotated[float, typer.Option(min=0, max=1, help="Of step times, relative.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of everything random.")]
Report = Annotated[
    Path | None,
    typer.Option(help="Write a page and pictures here; needs loraplex[bench]."),
]


def simulate(
    trace: Trace,
    profile: Profile = "a10g-llama2-7b",
    policy: Policy = "fair",
    cache: Cache = "worth",
    prefetch: Prefetch = "queue",
    transfers: Transfers = None,
    route: AdapterRoute = "choose",
    copy_rate: CopyRate = None,
    slots: Slots = None,
    load: Load = None,
    until: Until = None,
    adapters: Adapters = 0,
    zipf: Zipf = 0.9,
    ranks: Ranks = "8,16,32,64",
    burst: Burst = 1,
    cancel: Cancel = 0.0,
    tenants: Tenants = 16,
    rate: Rate = 2.0,
    duration: Duration = 300.0,
    burstiness: Burstiness = 1.0,
    active: Active = 1.0,
    max_tokens: MaxTokens = None,
    noise: Noise = 0.0,
    seed: Seed = 0,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Run the engine's scheduler on a trace under a virtual clock, and print what it would do."""
    from loraplex.engine.simulation.errors import SimulationError
    from loraplex.engine.simulation.experiment import Setup, at_load
    from loraplex.engine.simulation.routes import Copying
    from loraplex.engine.simulation.workload import (
        AdapterMix,
        Generated,
        scaled,
        with_adapters,
        with_burst,
        with_cancellations,
    )

    try:
        shape = Generated(tenants, rate, duration, 1.0, burstiness, active)
        requests = scaled(_requests(trace, shape, seed), 1.0, until)
        requests = with_adapters(requests, AdapterMix(adapters, zipf, _ranks(ranks)), seed)
        budget = None if transfers is None else int(transfers * 1e6)
        copying = Copying(prefetch, budget, route)
        device = _device(profile, copy_rate)
        setup = Setup(device, requests, max_tokens, slots, noise, seed, copying=copying)
        if load is not None:
            setup = replace(setup, requests=at_load(setup, load))
        requests = with_burst(setup.requests, burst, seed)
        setup = replace(setup, requests=with_cancellations(requests, cancel, seed))
        metrics = _run(setup, policy, cache, report, Path(trace).name)
    except SimulationError as error:
        raise failure(str(error)) from None
    if as_json:
        print_json([asdict(metrics)])
    else:
        print_table(("METRIC", "VALUE"), asdict(metrics).items(), empty="")


def _device(profile: str, copy_rate: float | None) -> "Device":
    from loraplex.engine.simulation.devices import read_device

    device = read_device(profile)
    if copy_rate is None:
        return device
    return replace(device, copy_bytes_per_s=copy_rate * 1e9)


def _run(setup: "Setup", policy: str, cache: str, report: Path | None, name: str) -> "Metrics":
    """Simulate, and write the report where one is wanted."""
    from loraplex.engine.simulation.experiment import run_policy
    from loraplex.engine.simulation.metrics import measure
    from loraplex.engine.simulation.report import prepare_report, write_report

    if report is not None:
        prepare_report(report)
    run = run_policy(setup, policy, cache, _show)
    metrics = measure(run)
    typer.echo("", err=True)
    if report is not None:
        page = write_report(report, f"{name}: {policy} on {setup.device.name}", run, metrics)
        typer.echo(f"report: {page}", err=True)
    return metrics


def _requests(trace: str, shape: "Generated", seed: int) -> "tuple[TraceRequest, ...]":
    from loraplex.engine.simulation.traces import read_trace
    from loraplex.engine.simulation.workload import generate

    return generate(shape, seed) if trace == _GENERATED else read_trace(Path(trace))


def _ranks(text: str) -> tuple[int, ...]:
    ranks = tuple(int(part) if part.strip().isdecimal() else 0 for part in text.split(","))
    if not all(1 <= rank <= 256 for rank in ranks):
        raise typer.BadParameter(f"{text!r} is not a list of ranks from 1 to 256, like 8,16,64")
    return ranks


def _show(at_s: float, until_s: float) -> None:
    typer.echo(
        f"\r{at_s:,.0f} s simulated, the last request comes at {until_s:,.0f} s  ",
        err=True,
        nl=False,
    )
