"""`loraplex adapter check`: the report that an upload would get, offline and without torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.base_model import BaseModel, ModelOption, find_base_model
from loraplex.platform.cli.context import AsJson, DataDir, load_settings, reporting_errors
from loraplex.platform.cli.output import counted, print_json

if TYPE_CHECKING:
    from loraplex.adapters.checkpoint import Report

_SHOWN = 4
_UNCHECKED = (
    "no base model is known, so modules and shapes were not checked; name its folder with --model"
)

_PROFILE_UNCHECKED = "not checked here; the digest is that without them"


def check(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a PEFT LoRA checkpoint.")
    ],
    model: ModelOption = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Tell whether a checkpoint can be served, and if not, every reason. Exits with 0 or 1."""
    from loraplex.adapters.checkpoint import examine
    from loraplex.adapters.profile_files import PROFILE_FILES

    with reporting_errors():
        base = find_base_model(load_settings(data_dir, None), model)
        report = examine(directory, base.shapes if base else None)
    profile = [name for name in PROFILE_FILES if (directory / name).is_file()]
    warnings = [
        *report.warnings,
        *([] if base else [_UNCHECKED]),
        *([f"{', '.join(profile)}: {_PROFILE_UNCHECKED}"] if profile else []),
    ]
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
        _print(report, base, warnings, _verdict(base, bool(profile)))
    raise typer.Exit(1 if report.problems else 0)


def _verdict(base: BaseModel | None, has_profile: bool) -> str:
    """Of an adapter that has no problem."""
    if base is None:
        return "Nothing was found against it."
    return "The weights can be served." if has_profile else "The adapter can be served."


def _print(report: "Report", base: BaseModel | None, warnings: list[str], verdict: str) -> None:
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
        typer.echo(verdict)
        return
    typer.echo(f"The adapter is refused for {counted(len(report.problems), 'reason')}:")
    for problem in report.problems:
        typer.echo(f"  - {problem}")
