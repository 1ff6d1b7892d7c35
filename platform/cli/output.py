"""How commands print data: aligned tables for people, JSON lines for programs."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import typer


def print_json(rows: Iterable[Mapping[str, object]]) -> None:
    """Print each row as one line of JSON; times are RFC 3339 in UTC."""
    for row in rows:
        typer.echo(json.dumps(row, default=_plain))


def print_titled_tables(
    tables: Iterable[tuple[str, tuple[Sequence[object], Sequence[Sequence[object]]]]], empty: str
) -> None:
    """Print tables below their titles, each a header and rows; `empty` where one has no rows."""
    for title, (header, rows) in tables:
        typer.echo(f"\n{title}")
        print_table([str(name).upper() for name in header], rows, empty)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print aligned columns, numbers to the right; `empty` where there are no rows."""
    table = [list(row) for row in rows]
    if not table:
        typer.echo(empty)
        return
    cells = [list(headers), *([_cell(value) for value in row] for row in table)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [isinstance(value, int | float) for value in table[0]]
    for line in cells:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        typer.echo("  ".join(padded).rstrip())


def counted(number: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"no JSON for {type(value)}")


def show_progress(progress: str) -> None:
    """Say on stderr how far a command is: over the last time on a terminal, else a line each."""
    if sys.stderr.isatty():
        typer.echo(f"\r\x1b[2K{progress}", err=True, nl=False)
    else:
        typer.echo(progress, err=True)
