"""`loraplex bench routes`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.bench_engine import cleaning_up, refusals
from loraplex.platform.cli.bench_options import require_matplotlib, settings_with
from loraplex.platform.cli.context import DataDir
from loraplex.platform.cli.output import print_json, print_titled_tables, show_progress

if TYPE_CHECKING:
    from loraplex.platform.bench.routes.plan import RoutesResult

_LARGEST_RATIO = 16.0
_QUICK_RATIOS = "0.5,2"
Model = Annotated[
    str | None,
    typer.Option(
        help="Base model: `demo`, a folder, a hub name, `random` (the demo's shape) or `small`. "
        "Default: `demo`, or `small` with --quick.",
        show_default=False,
    ),
]
Ratios = Annotated[
    str | None,
    typer.Option(
        help="Times of a copy ÷ that of a prompt, by commas. Default: 0.25,0.5,1,2.",
        show_default=False,
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        min=1, max=16, help="Of all routes. Default: 5, or 2 with --quick.", show_default=False
    ),
]
PromptTokens = Annotated[
    int | None,
    typer.Option(
        min=2, max=4096, help="Of a prompt. Default: 256, or 64 with --quick.", show_default=False
    ),
]
Rank = Annotated[int, typer.Option(min=1, max=1024, help="Of adapters.")]
Beside = Annotated[int, typer.Option(min=0, max=64, help="Requests that decode beside; 0: none.")]
Assistants = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=64,
        help="Processes that compute adapters' parts. Default: cores − 1, at most 8.",
        show_default=False,
    ),
]
Registered = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=100_000,
        help="Adapters whose throughput is compared with that of 5, or 0. Default: 2000, or 40 "
        "with --quick.",
        show_default=False,
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="A small model and sizes, to try it.")]
OutDir = Annotated[
    Path | None,
    typer.Option(help="Folder to write routes.md and routes.png to.", show_default=False),
]


def routes(
    model: Model = None,
    ratios: Ratios = None,
    rounds: Rounds = None,
    prompt_tokens: PromptTokens = None,
    rank: Rank = 16,
    beside: Beside = 4,
    assistants: Assistants = None,
    registered: Registered = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and prompts.")] = 0,
    quick: Quick = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    out: OutDir = None,
    data_dir: DataDir = None,
) -> None:
    """Time first tokens on adapters that the host has and the device has not, by route.

    The device is the worker's own memory, and its link is emulated: copies are throttled.
    """
    from loraplex.platform.settings import available_cores, prepare_worker_environment

    wanted = _ratios(ratios or (_QUICK_RATIOS if quick else "0.25,0.5,1,2"))
    with refusals(), cleaning_up():
        chosen = model or ("small" if quick else "demo")
        settings = settings_with(data_dir=data_dir, model=chosen, dtype="float32", threads=1)
        if out is not None:
            require_matplotlib()
        prepare_worker_environment()
        from loraplex.platform.bench.routes.plan import RoutesPlan
        from loraplex.platform.bench.routes.run import measure_routes

        plan = RoutesPlan(
            ratios=wanted,
            rounds=rounds or (2 if quick else 5),
            prompt_tokens=prompt_tokens or (64 if quick else 256),
            rank=rank,
            num_beside=beside,
            num_assistants=assistants or min(8, max(1, available_cores() - 1)),
            calibration_s=1.0 if quick else 12.0,
            num_registered=(40 if quick else 2000) if registered is None else registered,
            seed=seed,
            is_quick=quick,
        )
        result = measure_routes(settings, plan, show_progress)
    typer.echo("", err=True)
    _show(result, as_json=as_json)
    if out is not None:
        _write(result, out)


def _ratios(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    is_good = all(0 < ratio <= _LARGEST_RATIO for ratio in found)
    if not found or not is_good or len({*found}) < len(found):
        raise typer.BadParameter(
            f"{text!r} is not a list of different numbers above 0 and up to {_LARGEST_RATIO:g}, "
            "like 0.25,0.5,1,2",
            param_hint="--ratios",
        )
    return found


def _show(result: "RoutesResult", *, as_json: bool) -> None:
    from loraplex.platform.bench.routes import report

    if as_json:
        print_json([report.as_json(result)])
        return
    typer.echo(report.summary(result))
    print_titled_tables(report.tables(result), empty="Nothing was measured.")


def _write(result: "RoutesResult", folder: Path) -> None:
    from loraplex.platform.bench.routes.chart import draw_chart
    from loraplex.platform.bench.routes.report import with_measured

    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "routes.md"
    text = page.read_text() if page.exists() else ""
    draw_chart(result, folder / "routes.png")
    page.write_text(with_measured(text, result))
    typer.echo(f"wrote {page} and {folder / 'routes.png'}", err=True)
