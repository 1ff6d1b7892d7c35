"""`loraplex simulate`: what the scheduler would do with a load, on a device that is not here."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import AsJson, failure
from loraplex.platform.cli.output import print_json, print_table

if TYPE_CHECKING:
    from loraplex.engine.simulation.traces import TraceRequest
    from loraplex.engine.simulation.workload import Generated

_GENERATED = "generated"


def simulate(
    trace: Annotated[
        str,
        typer.Option(help="A trace's path (VTC, ServeGen, Azure, Mooncake), or `generated`."),
    ],
    profile: Annotated[
        str,
        typer.Option(help="`a10g-llama2-7b`, or the path of a vidur table or a saved cost model."),
    ] = "a10g-llama2-7b",
    policy: Annotated[
        str,
        typer.Option(help="fair, fcfs, slora, vtc, dlpm, skip-scan, drain or chameleon."),
    ] = "fair",
    cache: Annotated[str, typer.Option(help="lru, gdsf, chameleon or belady.")] = "lru",
    slots: Annotated[
        int | None, typer.Option(min=1, help="Adapters of the largest rank that fit; default all.")
    ] = None,
    load: Annotated[
        float | None,
        typer.Option(min=0.01, max=100, help="Squeeze arrivals to this share of what it can do."),
    ] = None,
    until: Annotated[
        float | None, typer.Option(min=0.001, help="Only requests of the first so many seconds.")
    ] = None,
    adapters: Annotated[
        int, typer.Option(min=0, max=1000, help="Adapters of each tenant; 0: the base model.")
    ] = 0,
    zipf: Annotated[
        float, typer.Option(min=0, max=5, help="Skew of the popularity of a tenant's adapters.")
    ] = 0.9,
    ranks: Annotated[str, typer.Option(help="Ranks of adapters, by commas.")] = "8,16,32,64",
    burst: Annotated[
        int, typer.Option(min=1, max=1000, help="One tenant sends so many times as much.")
    ] = 1,
    cancel: Annotated[
        float, typer.Option(min=0, max=1, help="Share of requests whose clients leave.")
    ] = 0.0,
    tenants: Annotated[int, typer.Option(min=1, max=5000, help="Generated: tenants.")] = 16,
    rate: Annotated[float, typer.Option(min=0.001, help="Generated: requests a second.")] = 2.0,
    duration: Annotated[float, typer.Option(min=1, help="Generated: seconds.")] = 300.0,
    burstiness: Annotated[
        float, typer.Option(min=0.1, max=20, help="Generated: variation of gaps; 1 is Poisson.")
    ] = 1.0,
    active: Annotated[
        float, typer.Option(min=0.01, max=1, help="Generated: part of the time a tenant is on.")
    ] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Cap that requests name; default: longest output.")
    ] = None,
    noise: Annotated[float, typer.Option(min=0, max=1, help="Of step times, relative.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    report: Annotated[
        Path | None, typer.Option(help="Write a page and pictures into this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the engine's scheduler on a trace under a virtual clock, and print what it would do."""
    from loraplex.engine.simulation.devices import read_device
    from loraplex.engine.simulation.errors import SimulationError
    from loraplex.engine.simulation.experiment import Setup, at_load, run_policy
    from loraplex.engine.simulation.metrics import measure
    from loraplex.engine.simulation.workload import (
        AdapterMix,
        Generated,
        scaled,
        with_adapters,
        with_burst,
        with_cancellations,
    )

    try:
        device = read_device(profile)
        shape = Generated(tenants, rate, duration, 1.0, burstiness, active)
        requests = scaled(_requests(trace, shape, seed), 1.0, until)
        requests = with_adapters(requests, AdapterMix(adapters, zipf, _ranks(ranks)), seed)
        setup = Setup(device, requests, max_tokens, slots, noise, seed)
        if load is not None:
            setup = replace(setup, requests=at_load(setup, load))
        requests = with_burst(setup.requests, burst, seed)
        setup = replace(setup, requests=with_cancellations(requests, cancel, seed))
        run = run_policy(setup, policy, cache, _show)
        metrics = measure(run)
        typer.echo("", err=True)
        if report is not None:
            from loraplex.engine.simulation.report import write_report

            page = write_report(
                report, f"{Path(trace).name}: {policy} on {device.name}", run, metrics
            )
            typer.echo(f"report: {page}", err=True)
    except SimulationError as error:
        raise failure(str(error)) from None
    if as_json:
        print_json([asdict(metrics)])
    else:
        print_table(("METRIC", "VALUE"), asdict(metrics).items(), empty="")


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
