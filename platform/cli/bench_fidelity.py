"""`loraplex bench fidelity`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import AsJson, DataDir, failure, reporting_errors
from loraplex.platform.cli.output import print_json, print_table, show_progress

if TYPE_CHECKING:
    from loraplex.platform.bench.fidelity import FidelityResult

Model = Annotated[
    str, typer.Option(help="Base model: `random` (small), `demo`, a folder or a hub name.")
]


def fidelity(
    model: Model = "random",
    seconds: Annotated[
        float, typer.Option(min=5, max=3600, help="Of the trace that is compared.")
    ] = 60.0,
    load: Annotated[
        float, typer.Option(min=0.05, max=5, help="Of what this machine can do.")
    ] = 0.9,
    tenants: Annotated[int, typer.Option(min=1, max=64, help="Tenants.")] = 4,
    processor_time: Annotated[
        bool,
        typer.Option(
            "--processor-time", help="Leave out the time that others take of this machine."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of everything random.")] = 0,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Run a trace through the engine and through the simulator, and compare what they do."""
    from loraplex.engine.errors import EngineError
    from loraplex.platform.bench.errors import BenchFailed
    from loraplex.platform.cli.context import load_settings
    from loraplex.platform.demo.base import DemoModelMissing
    from loraplex.platform.settings import prepare_worker_environment

    try:
        with reporting_errors():
            settings = load_settings(data_dir, None)
            prepare_worker_environment()
            from loraplex.platform.bench.fidelity import FidelityPlan, measure_fidelity

            plan = FidelityPlan(
                seconds=seconds,
                load=load,
                num_tenants=tenants,
                by_processor_time=processor_time,
                seed=seed,
            )
            result = measure_fidelity(
                settings.model_copy(update={"model": model}), plan, show_progress
            )
    except (EngineError, BenchFailed, DemoModelMissing) as error:
        raise failure(str(error)) from None
    typer.echo("", err=True)
    if as_json:
        print_json([asdict(result)])
    else:
        _print(result)


def _print(result: "FidelityResult") -> None:
    typer.echo(str(result.machine))
    typer.echo(
        f"{result.num_requests} requests, {result.num_steps} steps; learned from "
        f"{result.learned_steps} steps; step times: P50 error {result.step_p50_error:.1%}, "
        f"P95 {result.step_p95_error:.1%}"
    )
    rows = (
        (
            each.name,
            round(each.engine, 3),
            round(each.again, 3),
            round(each.simulated, 3),
            f"{each.error:+.1%}",
        )
        for each in result.compared
    )
    print_table(("METRIC", "ENGINE", "AGAIN", "SIMULATED", "ERROR"), rows, empty="")
