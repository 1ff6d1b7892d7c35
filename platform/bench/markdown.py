"""Pages that benchmarks write."""

from collections.abc import Iterable, Sequence

Row = Sequence[object]
Table = tuple[Row, Sequence[Row]]
"""Header and rows."""


def page(parts: Iterable[str], tables: Iterable[tuple[str, Table]]) -> str:
    """Return paragraphs, then tables under their titles."""
    shown = [*parts]
    for title, (header, rows) in tables:
        lines = [header, ["---"] * len(header), *rows]
        table = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
        shown += [f"## {title}", table]
    return "\n\n".join(shown) + "\n"
