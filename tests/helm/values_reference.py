"""The table of the chart's values in `docs/kubernetes.md`, made from the comments in `values.yaml`.

`python tests/helm/values_reference.py` writes it anew.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent
VALUES = ROOT / "helm" / "loraplex" / "values.yaml"
PAGE = ROOT / "docs" / "kubernetes.md"
BEGIN, END = "<!-- values: begin -->\n", "<!-- values: end -->\n"
WHOLE = ("resources",)
"""Values that are one, though they are maps."""


def values_table() -> str:
    """All values as a Markdown table."""
    lines = VALUES.read_text().splitlines()
    head = "| value | default | meaning |\n|---|---|---|\n"
    return head + "".join(_row(lines, *leaf) for leaf in _leaves(yaml.compose(VALUES.read_text())))


def written_anew(page: str) -> str:
    """The page, with the table as it should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + values_table() + END + after


def _row(lines: list[str], path: str, line: int, default: object) -> str:
    comment: list[str] = []
    while lines[line - 1].strip().startswith("#"):
        line -= 1
        comment.insert(0, lines[line].strip().removeprefix("#").strip())
    if not comment:
        raise ValueError(f"values.yaml says nothing about {path}")
    shown = "–" if default in ("", [], {}) else f"`{json.dumps(default)}`"
    return f"| `{path}` | {shown} | {' '.join(comment)} |\n"


def _leaves(node: yaml.MappingNode, prefix: str = "") -> Iterator[tuple[str, int, object]]:
    """Path, line (from 0) and default of each value."""
    for key, value in node.value:
        path = prefix + key.value
        if isinstance(value, yaml.MappingNode) and value.value and key.value not in WHOLE:
            yield from _leaves(value, f"{path}.")
        else:
            yield path, key.start_mark.line, yaml.safe_load(yaml.serialize(value))


if __name__ == "__main__":
    PAGE.write_text(written_anew(PAGE.read_text()))
