"""`loraplex adapter check`: the report that an upload would get, offline and without torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from loraplex.platform.cli.context import AsJson, CommandFailed, DataDir, reporting_errors
from loraplex.platform.cli.output import counted, print_json

if TYPE_CHECKING:
    from loraplex.adapters.base_shapes import BaseShapes
    from loraplex.adapters.checkpoint import Report

_SHOWN = 4
_UNCHECKED = (
    "no base model is known, so modules and shapes were not checked; name its folder with --model"
)


class _Base(NamedTuple):
    name: str
    shapes: "BaseShapes"


def check(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a PEFT LoRA checkpoint.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|demo", help="Base model's folder. Default: what `loraplex serve` served."
        ),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Tell whether a checkpoint can be served, and if not, every reason. Exits with 0 or 1."""
    from loraplex.adapters.checkpoint import examine

    with reporting_errors():
        base = _base(model, data_dir)
        report = examine(directory, base.shapes if base else None)
    warnings = [*report.warnings, *([] if base else [_UNCHECKED])]
    if as_json:
        print_json(
            [
                {
                    "ok": not report.problems,
                    "digest": report.digest or None,
                    "rank": report.rank,
                    "targets": report.modules,
                    "problems": [problem._asdict() for problem in report.problems],
                    "warnings": warnings,
                }
            ]
        )
    else:
        _print(report, base, warnings)
    raise typer.Exit(1 if report.problems else 0)


def _print(report: "Report", base: _Base | None, warnings: list[str]) -> None:
    shown = ", ".join(report.modules[:_SHOWN])
    more = len(report.modules) - _SHOWN
    lines = {
        "digest": report.digest or "-",
        "base model": base.name if base else "-",
        "rank": str(report.rank or "-"),
        "targets": f"{counted(len(report.modules), 'module')}: {shown}"
        + (f" and {more} more" if more > 0 else ""),
        "bytes": f"{report.num_bytes:,}",
    }
    for name, text in lines.items():
        typer.echo(f"{name:<12}{text}")
    for warning in warnings:
        typer.echo(f"warning: {warning}")
    if not report.problems:
        typer.echo("The adapter can be served." if base else "Nothing was found against it.")
        return
    typer.echo(f"The adapter is refused for {counted(len(report.problems), 'reason')}:")
    for problem in report.problems:
        typer.echo(f"  - {problem}")


def _base(model: str | None, data_dir: Path | None) -> _Base | None:
    """The base model asked for, else the one that a worker served last, else none."""
    from loraplex.adapters.base_shapes import BaseShapes

    if model not in (None, "demo"):
        return _Base(model, BaseShapes.read(Path(model)))
    from loraplex.platform.base_record import read_record, shapes_told
    from loraplex.platform.cli.context import load_settings
    from loraplex.platform.demo.base import DEMO_MODEL_NAME, demo_model_dir

    settings = load_settings(data_dir, None)
    if model == "demo":
        return _Base(DEMO_MODEL_NAME, BaseShapes.read(demo_model_dir(settings.data_dir)))
    path = settings.base_record_path
    try:
        record = read_record(path)
    except (OSError, ValueError) as error:
        raise CommandFailed(
            f"{path} cannot be read ({error!r}); name a folder with --model"
        ) from None
    return _Base(record.name, shapes_told(record.shapes)) if record else None
