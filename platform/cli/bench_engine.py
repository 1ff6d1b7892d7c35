"""`loraplex bench engine`."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from loraplex.platform.cli.bench_options import numbers, require_matplotlib, settings_with
from loraplex.platform.cli.context import DataDir, failure, reporting_errors
from loraplex.platform.cli.output import print_json, print_titled_tables, show_progress

if TYPE_CHECKING:
    from loraplex.platform.bench.engine import EngineResult
    from loraplex.platform.bench.peer import PeerChoice

Model = Annotated[
    str,
    typer.Option(help="Base model: `demo`, a folder, a hub name, or `random` (the demo's shape)."),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Arithmetic of the model.")
]
Requests = Annotated[str, typer.Option(help="Requests per step, by commas.")]
EXIT_TERMINATED = 143
DURATION = (
    "Without options expect a quarter of an hour or more on two busy cores. The least that tells "
    "something takes one to three minutes: --requests 1,16 --repeats 1 --new-tokens 8 --no-peft"
)
OutDir = Annotated[
    Path | None,
    typer.Option(help="Folder to write engine.md and engine.png to.", show_default=False),
]
Peers = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="peft|mistralrs|vllm",
        help="Engine to measure in turns with it, beside PEFT; may be repeated.",
        show_default=False,
    ),
]
Pythons = Annotated[
    list[str] | None,
    typer.Option(
        "--peer-python",
        metavar="[NAME=]PATH",
        help="Python that has a peer, or all peers but PEFT. Default: this one.",
        show_default=False,
    ),
]
Floors = Annotated[
    bool, typer.Option("--floors", help="Steps and prefill at 256 tokens, and their floors.")
]
Ranks = Annotated[
    bool, typer.Option("--ranks", help="Steps by the sum of ranks, with a fitted line.")
]
Scale = Annotated[
    bool, typer.Option("--scale", help="Throughput with many registered adapters and with 5.")
]
DEFAULT_REGISTERED = 2000
Registered = Annotated[
    int | None,
    typer.Option(
        min=6,
        max=100_000,
        help=f"Registered adapters of --scale. Default: {DEFAULT_REGISTERED}.",
        show_default=False,
    ),
]
ProcessorTime = Annotated[
    bool,
    typer.Option(
        "--processor-time", help="On a busy machine: leave out what others take of one thread."
    ),
]


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
    peers: Peers = None,
    peer_pythons: Pythons = None,
    floors: Floors = False,
    ranks: Ranks = False,
    scale: Scale = False,
    registered: Registered = None,
    processor_time: ProcessorTime = False,
    profile: Annotated[bool, typer.Option("--profile", help="Split the time of a step.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    out: OutDir = None,
    data_dir: DataDir = None,
) -> None:
    """Measure the engine on 16 adapters of ranks 8 to 64: throughput, TTFT, and peers beside it."""
    from loraplex.platform.settings import prepare_worker_environment

    sizes = numbers(requests, "--requests")
    with refusals(), cleaning_up():
        num_registered = _registered(registered, scale=scale)
        choices = _choices(peft, peers or (), peer_pythons or ())
        settings = settings_with(data_dir=data_dir, model=model, dtype=dtype, threads=threads)
        if out is not None:
            require_matplotlib()
        prepare_worker_environment()
        from loraplex.platform.bench.engine import measure_engine
        from loraplex.platform.bench.series import EnginePlan

        plan = EnginePlan(
            batch_sizes=sizes,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
            repeats=repeats,
            seed=seed,
            peers=tuple(choice.name for choice in choices),
            with_profile=profile,
            with_floors=floors,
            with_ranks=ranks,
            with_scale=scale,
            num_registered=num_registered,
            by_processor_time=processor_time,
        )
        result = measure_engine(settings, plan, choices, show_progress)
    typer.echo("", err=True)
    _show(result, as_json=as_json)
    if out is not None:
        _write(result, out)


def _registered(registered: int | None, *, scale: bool) -> int:
    if registered is not None and not scale:
        raise typer.BadParameter(
            f"{registered} adapters are registered for --scale alone: add it",
            param_hint="--registered",
        )
    return registered or DEFAULT_REGISTERED


def _choices(
    peft: bool,
    peers: Sequence[str],
    pythons: Sequence[str],
) -> "list[PeerChoice]":
    """PEFT first unless it is left out, then the others that were named."""
    from loraplex.platform.bench.peer import REMEDIES, PeerChoice
    from loraplex.platform.cli.context import CommandFailed

    unknown = sorted(set(peers) - REMEDIES.keys())
    if unknown:
        known = ", ".join(REMEDIES)
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {known}", param_hint="--peer")
    if not peft and "peft" in peers:
        raise CommandFailed("--peer peft and --no-peft contradict each other")
    asked = {"peft", *peers} if peft else set(peers)
    names = [name for name in REMEDIES if name in asked]
    by_name: dict[str, str] = {}
    for python in pythons:
        name, equals, path = python.partition("=")
        by_name |= {name: path} if equals else dict.fromkeys(set(names) - {"peft"}, python)
    unasked = sorted(by_name.keys() - set(names))
    if unasked:
        raise CommandFailed(
            f"--peer-python names {', '.join(unasked)}, which --peer does not: "
            f"{', '.join(names) or 'there is no peer'}"
        )
    return [PeerChoice(name, by_name.get(name, sys.executable)) for name in names]


def _show(result: "EngineResult", *, as_json: bool) -> None:
    from loraplex.platform.bench import report

    if as_json:
        print_json([report.as_json(result)])
        return
    typer.echo(report.summary(result))
    print_titled_tables(report.tables(result), empty="Nothing was measured.")


def _write(result: "EngineResult", folder: Path) -> None:
    from loraplex.platform.bench.chart import draw_chart
    from loraplex.platform.bench.report import as_markdown

    folder.mkdir(parents=True, exist_ok=True)
    draw_chart(result, folder / "engine.png")
    (folder / "engine.md").write_text(as_markdown(result, "engine.png"))
    typer.echo(f"wrote {folder / 'engine.md'} and {folder / 'engine.png'}", err=True)


@contextmanager
def refusals() -> Iterator[None]:
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
def cleaning_up() -> Iterator[None]:
    """End by an exception when told to end, so that a gigabyte of adapters is not left behind."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
