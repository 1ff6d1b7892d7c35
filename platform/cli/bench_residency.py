"""`loraplex bench residency`."""

import os
from dataclasses import asdict
from typing import Annotated

import typer

from loraplex.platform.cli.context import AsJson, failure, load_settings, reporting_errors
from loraplex.platform.cli.output import print_json, print_table, show_progress


def residency(
    registered: Annotated[int, typer.Option(min=40, help="Adapters in the store.")] = 2000,
    host: Annotated[int, typer.Option(min=1, help="Adapters that the host's memory holds.")] = 200,
    device: Annotated[int, typer.Option(min=1, help="Adapters that the device holds.")] = 32,
    cycles: Annotated[int, typer.Option(min=1, help="Loads, once both are full.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and requests.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Load and unload adapters of a small random model: memory, times by route, start-up."""
    from loraplex.engine.errors import EngineError
    from loraplex.platform.settings import prepare_worker_environment

    load_average = os.getloadavg()[0]
    if not device < host < registered:
        raise failure(f"--device {device}, --host {host}, --registered {registered} must ascend")
    with reporting_errors():
        settings = load_settings(None, None)
        prepare_worker_environment()
        from loraplex.platform.bench.errors import BenchFailed
        from loraplex.platform.bench.residency import ResidencyPlan, measure_residency

        plan = ResidencyPlan(registered, host, device, cycles, seed)
        try:
            result = measure_residency(settings, plan, load_average, show_progress)
        except (EngineError, BenchFailed) as error:
            raise failure(str(error)) from None
    typer.echo("", err=True)
    if as_json:
        print_json([asdict(result) | {"machine": str(result.machine)}])
        return
    typer.echo(str(result.machine))
    values = asdict(result)
    plain = {name: value for name, value in values.items() if not isinstance(value, dict)}
    for route in ("store", "host"):
        plain |= {f"{route}_{name}": value for name, value in values[route].items()}
    print_table(("MEASURE", "VALUE"), plain.items(), empty="Nothing was measured.")
