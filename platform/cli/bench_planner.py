"""`loraplex bench planner`."""

from dataclasses import asdict
from typing import Annotated

import typer

from loraplex.platform.cli.context import AsJson
from loraplex.platform.cli.output import print_json, print_table, show_progress


def planner(
    running: Annotated[int, typer.Option(min=1, max=1024, help="Requests that run.")] = 256,
    waiting: Annotated[int, typer.Option(min=1, max=100_000, help="Requests that wait.")] = 1000,
    adapters: Annotated[int, typer.Option(min=1, help="Adapters of all requests.")] = 1000,
    steps: Annotated[int, typer.Option(min=1, help="Steps to time.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of the requests.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Time what deciding a step costs, without a model: plan and commit, on the processor."""
    from loraplex.platform.bench.planner import Load, measure_planner

    load = Load(running, waiting, adapters)
    times = measure_planner(load, steps, seed, show_progress)
    typer.echo("", err=True)
    if as_json:
        print_json([asdict(times)])
        return
    print_table(
        ("P50 US", "P99 US", "P50 US, NOTHING NEW", "STEPS"),
        [(times.p50_us, times.p99_us, times.reuse_p50_us, times.num_steps)],
        empty="Nothing was measured.",
    )
