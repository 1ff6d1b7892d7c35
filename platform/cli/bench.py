"""`loraplex bench`: what this machine does with the platform."""

from dataclasses import asdict
from typing import Annotated

import typer

from loraplex.platform.cli.bench_engine import DURATION, engine
from loraplex.platform.cli.bench_fidelity import fidelity
from loraplex.platform.cli.bench_gateway import gateway
from loraplex.platform.cli.bench_kernels import kernels
from loraplex.platform.cli.bench_options import numbers
from loraplex.platform.cli.bench_planner import planner
from loraplex.platform.cli.bench_prefix import prefix
from loraplex.platform.cli.bench_residency import residency
from loraplex.platform.cli.bench_routes import routes
from loraplex.platform.cli.bench_serve import serve
from loraplex.platform.cli.context import AsJson, DataDir, load_settings, reporting_errors
from loraplex.platform.cli.output import print_json, print_table, show_progress

app = typer.Typer(help="Benchmarks, each a seeded run on this machine.", no_args_is_help=True)
app.command("engine", epilog=DURATION)(engine)
app.command("serve")(serve)
app.command("planner")(planner)
app.command("gateway")(gateway)
app.command("fidelity")(fidelity)
app.command("prefix")(prefix)
app.command("residency")(residency)
app.command("routes")(routes)
app.command("kernels")(kernels)


@app.command()
def steps(
    batch_sizes: Annotated[str, typer.Option(help="Requests per step, by commas.")] = "1,8,16",
    repeats: Annotated[int, typer.Option(min=1, help="Steps of each kind.")] = 10,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Time decode steps of the demo model: base only, one adapter, each request its own adapter."""
    from loraplex.platform.settings import prepare_worker_environment

    with reporting_errors():
        sizes = numbers(batch_sizes)
        settings = load_settings(data_dir, None)
        prepare_worker_environment()
        from loraplex.platform.bench.steps import measure_steps

        times = list(measure_steps(settings, sizes, repeats, show_progress))
    typer.echo("", err=True)
    if as_json:
        print_json(asdict(time) | {"tokens_per_s": time.tokens_per_s} for time in times)
        return
    print_table(
        ("REQUESTS", "ADAPTERS", "MEDIAN MS", "BEST MS", "TOKENS/S"),
        (
            (
                time.num_requests,
                time.num_adapters,
                round(time.median_ms, 1),
                round(time.best_ms, 1),
                round(time.tokens_per_s, 1),
            )
            for time in times
        ),
        empty="Nothing was measured.",
    )
