"""JSON from strangers: no duplicate keys, no NaN, no number beyond float64, no text that is not
Unicode, no deep nesting that kills the parser."""

import json
import math
import re
from collections import Counter
from typing import NoReturn

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""The escape of half a surrogate pair; two of them can be one character."""


def decode(data: bytes) -> object:
    """Decode UTF-8 JSON; ValueError says what is wrong with it."""
    try:
        decoded: object = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
        if _SURROGATE.search(data):
            json.dumps(decoded, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("a text escapes half a surrogate pair, which is not Unicode") from error
    return decoded


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"key {twice[:80]!r} occurs twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:80]} is too large")
    return number
