"""JSON from strangers: no duplicate keys, no NaN, no deep nesting that kills the parser."""

import json
from collections import Counter
from typing import NoReturn


def decode(data: bytes) -> object:
    """Decode UTF-8 JSON; ValueError says what is wrong with it."""
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"key {twice[:80]!r} occurs twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
