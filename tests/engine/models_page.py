"""The tables of docs/models.md: from what the tests run, and from a sweep of transformers.

`python -m tests.engine.models_page` writes both into the page; the sweep takes about a minute.
"""

from collections.abc import Iterable
from pathlib import Path

from tests.engine.architectures import ARCHITECTURES, Architecture
from tests.engine.sweep import Swept, sweep
from transformers import __version__

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def section(text: str, name: str) -> str:
    """What the page has between the marks of a section."""
    return text[slice(*_bounds(text, name))]


def replaced(text: str, name: str, content: str) -> str:
    """The page with another content there."""
    start, end = _bounds(text, name)
    return text[:start] + content + text[end:]


def _bounds(text: str, name: str) -> tuple[int, int]:
    start = f"<!-- {name} -->\n"
    return text.index(start) + len(start), text.index(f"<!-- end of {name} -->")


def proven() -> str:
    """The table of what the tests run."""
    head = "| architecture | what is special | adapters on | bfloat16, float16 | restrictions |"
    rows = [_row(name, architecture) for name, architecture in ARCHITECTURES.items()]
    return "\n".join([head, "|---|---|---|---|---|", *rows, ""])


def swept(found: Iterable[Swept]) -> str:
    """What became of each type; ends the program if one was accepted and computed wrong."""
    results = sorted(set(found))
    different = [result for result in results if result.outcome == "different"]
    if different:
        raise SystemExit(f"accepted, and computed wrong: {different}")
    refused: dict[str, list[str]] = {}
    for result in results:
        if result.outcome == "refused":
            refused.setdefault(result.reason, []).append(_code(result.model_type))
    rows = sorted(f"| {', '.join(names)} | {why} |" for why, names in refused.items())
    parts = [
        f"With transformers {__version__}:",
        f"**Accepted and equal**: {_named(results, 'equal')}.",
        f"**Not tried**, for want of a small model that runs: {_named(results, 'not tried')}.",
        "\n".join(["| refused | because |", "|---|---|", *rows, ""]),
    ]
    return "\n\n".join(parts)


def _row(name: str, architecture: Architecture) -> str:
    cells = (
        f"{name} ({_code(architecture.config.model_type)})",
        architecture.shows,
        ", ".join(map(_code, (*architecture.linears, *architecture.parameters))),
        ", ".join(map(str, architecture.tolerances.values())),
        architecture.restriction,
    )
    return f"| {' | '.join(cells)} |"


def _named(results: Iterable[Swept], outcome: str) -> str:
    return ", ".join(_code(found.model_type) for found in results if found.outcome == outcome)


def _code(name: str) -> str:
    return f"`{name}`"


if __name__ == "__main__":
    page = PAGE.read_text()
    for name, content in (("proven", proven()), ("swept", swept(sweep()))):
        page = replaced(page, name, content)
    PAGE.write_text(page)
