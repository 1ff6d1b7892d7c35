"""`loraplex bench`: what this machine does with the platform."""

from dataclasses import asdict
from typing import Annotated

import typer

from loraplex.platform.cli.context import AsJson, DataDir, load_settings, reporting_errors
from loraplex.platform.cli.output import print_json, print_table

app = typer.Typer(help="Benchmarks, each a seeded run on this machine.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `steps` a sub-command while it is the only one."""


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
        sizes = _sizes(batch_sizes)
        settings = load_settings(data_dir, None)
        prepare_worker_environment()
        from loraplex.platform.bench import measure_steps

        def show(progress: str) -> None:
            typer.echo(f"\r{progress}   ", err=True, nl=False)

        times = list(measure_steps(settings, sizes, repeats, show))
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


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) if part.strip().isdecimal() else 0 for part in text.split(","))
    if not all(1 <= size <= 256 for size in sizes):
        raise typer.BadParameter(f"{text!r} is not a list of numbers from 1 to 256, like 1,8,16")
    return sizes
