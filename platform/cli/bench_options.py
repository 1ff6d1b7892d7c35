"""What several benchmarks are told."""

import importlib.util
from typing import TYPE_CHECKING, Any

import typer

from loraplex.platform.cli.context import CommandFailed

if TYPE_CHECKING:
    from loraplex.platform.settings import Settings


def numbers(text: str, option: str | None = None, most: int = 256) -> tuple[int, ...]:
    """Read different numbers from 1 to ``most``, by commas.

    Raises:
        typer.BadParameter: they are not, naming ``option``.
    """
    found = tuple(int(part) if part.strip().isdecimal() else 0 for part in text.split(","))
    if not all(1 <= number <= most for number in found) or len({*found}) < len(found):
        raise typer.BadParameter(
            f"{text!r} is not a list of different numbers from 1 to {most}, like 1,8,16",
            param_hint=option,
        )
    return found


def settings_with(**given: Any) -> "Settings":  # noqa: ANN401  whatever settings there are
    """Return the settings with those that are given; None leaves one as it is.

    Raises:
        CommandFailed: there are more threads than cores.
    """
    from loraplex.platform.settings import Settings, available_cores

    threads = given["threads"]
    if threads is not None and threads > available_cores():
        raise CommandFailed(
            f"--threads is {threads}; this process may run on {available_cores()} cores"
        )
    return Settings(**{name: value for name, value in given.items() if value is not None})


def require_matplotlib() -> None:
    """Raise CommandFailed where charts cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandFailed("--out draws a chart with matplotlib: pip install 'loraplex[bench]'")
