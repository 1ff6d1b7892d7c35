"""`loraplex bench`: what this machine does with the platform."""

import importlib.util
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from loraplex.platform.cli.bench_fidelity import fidelity
from loraplex.platform.cli.bench_planner import planner
from loraplex.platform.cli.bench_prefix import prefix
from loraplex.platform.cli.bench_residency import residency
from loraplex.platform.cli.bench_serve import serve
from loraplex.platform.cli.context import (
    AsJson,
    DataDir,
    failure,
    load_settings,
    reporting_errors,
)
from loraplex.platform.cli.output import print_json, print_table, show_progress

if TYPE_CHECKING:
    from loraplex.platform.bench.engine import EngineResult
    from loraplex.platform.settings import Settings

app = typer.Typer(help="Benchmarks, each a seeded run on this machine.", no_args_is_help=True)
app.command("serve")(serve)
app.command("planner")(planner)
app.command("fidelity")(fidelity)
app.command("prefix")(prefix)
app.command("residency")(residency)

Model = Annotated[
    str,
    typer.Option(help="Base model: `demo`, a folder, a hub name, or `random` (the demo's shape)."),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Arithmetic of the model.")
]
Requests = Annotated[str, typer.Option(help="Requests per step, by commas.")]
EXIT_TERMINATED = 143
OutDir = Annotated[
    Path | None,
    typer.Option(help="Folder to write engine.md and engine.png to.", show_default=False),
]


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


@app.command()
def engine(
    model: Model = "demo",
    dtype: Dtype = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the arithmetic. Default: cores − 1.")
    ] = None,
    requests: Requests = "1,8,16,32",
    prompt_tokens: Annotated[int, typer.Option(min=1, max=4096, help="Length of a prompt.")] = 64,
    new_tokens: Annotated[
        int, typer.Option(min=2, max=4096, help="Output of a request; all but the first count.")
    ] = 16,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Repetitions of every case.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and prompts.")] = 0,
    peft: Annotated[bool, typer.Option(help="Measure PEFT's mixed batch in turns with it.")] = True,
    profile: Annotated[bool, typer.Option("--profile", help="Split the time of a step.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    out: OutDir = None,
    data_dir: DataDir = None,
) -> None:
    """Measure the engine on 16 adapters of ranks 8 to 64: throughput, TTFT, and PEFT beside it."""
    from loraplex.platform.settings import prepare_worker_environment

    sizes = _sizes(requests, "--requests")
    with _refusals(), _cleaning_up():
        settings = _engine_settings(data_dir, model=model, dtype=dtype, threads=threads)
        if out is not None:
            _require_matplotlib()
        prepare_worker_environment()
        from loraplex.platform.bench.engine import measure_engine
        from loraplex.platform.bench.series import EnginePlan

        plan = EnginePlan(
            batch_sizes=sizes,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
            repeats=repeats,
            seed=seed,
            with_peft=peft,
            with_profile=profile,
        )
        result = measure_engine(settings, plan, show_progress)
    typer.echo("", err=True)
    _show(result, as_json=as_json)
    if out is not None:
        _write(result, out)


def _engine_settings(data_dir: Path | None, **given: Any) -> "Settings":  # noqa: ANN401  whatever settings there are
    from loraplex.platform.cli.context import CommandFailed
    from loraplex.platform.settings import Settings, available_cores

    threads = given["threads"]
    if threads is not None and threads > available_cores():
        raise CommandFailed(
            f"--threads is {threads}; this process may run on {available_cores()} cores"
        )
    options = {"data_dir": data_dir} | given
    return Settings(**{name: value for name, value in options.items() if value is not None})


def _show(result: "EngineResult", *, as_json: bool) -> None:
    from loraplex.platform.bench import report

    if as_json:
        print_json([report.as_json(result)])
        return
    typer.echo(report.summary(result))
    for title, (header, rows) in report.tables(result):
        typer.echo(f"\n{title}")
        print_table([str(name).upper() for name in header], rows, empty="Nothing was measured.")


def _write(result: "EngineResult", folder: Path) -> None:
    from loraplex.platform.bench.chart import draw_chart
    from loraplex.platform.bench.report import as_markdown

    folder.mkdir(parents=True, exist_ok=True)
    draw_chart(result, folder / "engine.png")
    (folder / "engine.md").write_text(as_markdown(result, "engine.png"))
    typer.echo(f"wrote {folder / 'engine.md'} and {folder / 'engine.png'}", err=True)


def _require_matplotlib() -> None:
    from loraplex.platform.cli.context import CommandFailed

    if importlib.util.find_spec("matplotlib") is None:
        raise CommandFailed("--out draws a chart with matplotlib: pip install 'loraplex[bench]'")


@contextmanager
def _refusals() -> Iterator[None]:
    """Tell in one line why nothing is measured."""
    from loraplex.engine.errors import EngineError
    from loraplex.platform.bench.errors import BenchFailed, BenchRefused
    from loraplex.platform.demo.base import DemoModelMissing

    try:
        with reporting_errors():
            yield
    except (EngineError, BenchRefused, BenchFailed, DemoModelMissing) as error:
        raise failure(str(error)) from None


@contextmanager
def _cleaning_up() -> Iterator[None]:
    """End by an exception when told to end, so that a gigabyte of adapters is not left behind."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _sizes(text: str, option: str | None = None) -> tuple[int, ...]:
    sizes = tuple(int(part) if part.strip().isdecimal() else 0 for part in text.split(","))
    if not all(1 <= size <= 256 for size in sizes) or len({*sizes}) < len(sizes):
        raise typer.BadParameter(
            f"{text!r} is not a list of different numbers from 1 to 256, like 1,8,16",
            param_hint=option,
        )
    return sizes
