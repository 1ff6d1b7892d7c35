r"""Regular expressions from tenants, matched in linear time.

Python's `re` backtracks: `(.|.)(.|.)…` from an upload would occupy a process for years. So the
patterns are run by the automaton that pydantic has from Rust's `regex` crate, whose time is
proportional to pattern × path. The two dialects agree on the subset that `refusal` lets through:
letters, digits, `_`, `-`, `.`, `\.`, `\d`, `\w`, `\b`, `^`, `$`, `|`, groups, simple classes such
as `[0-9a-f]`, the quantifiers `* + ?`, lazy or not, and `{m,n}` below ten on single characters.
Paths are ASCII, so the classes `\w`, `\d` and `\b` are run as their ASCII ones: those of Unicode
take a hundred times as long to compile.
"""

import re
from collections.abc import Iterable
from types import MappingProxyType

from pydantic_core import SchemaError, SchemaValidator, core_schema

MAX_PATTERN_CHARS = 1024

_ITEM = r"(?:[0-9A-Za-z_]-[0-9A-Za-z_]|[0-9A-Za-z_.]|\\[dw.-])"
_TOKEN = (
    rf"[0-9A-Za-z_.^$|)-]|\\[dwb.-]|\((?:\?:|(?!\?))|\[\^?{_ITEM}+\]"
    r"|(?:[*+?]|(?<!\))\{[0-9](?:,[0-9]?)?\})\??(?![*+?{])"
)
# Possessive, so that this check is itself linear.
_SUBSET = re.compile(rf"(?:{_TOKEN})*+")
_PLAIN = re.compile(r"[0-9A-Za-z_.-]*")
_ASCII = MappingProxyType({r"\w": "[0-9A-Za-z_]", r"\d": "[0-9]", r"\b": r"(?-u:\b)"})


def is_plain(pattern: str) -> bool:
    """True for a name, possibly with dots: nothing in it repeats, so that it needs no automaton."""
    return _PLAIN.fullmatch(pattern) is not None


def refusal(pattern: str) -> str | None:
    """Say why a pattern is refused, or return None if it can be matched as PEFT matches it."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"is longer than {MAX_PATTERN_CHARS} characters"
    if is_plain(pattern):
        return None
    matched = _SUBSET.match(pattern)
    end = matched.end() if matched else 0
    if end < len(pattern):
        return f"uses {pattern[end : end + 10]!r}, outside the supported subset of regex syntax"
    try:
        re.compile(pattern)
        _automaton(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is not a regular expression: {error}"
    except SchemaError as error:
        return f"is not a regular expression: {str(error).splitlines()[-1]}"
    return None


def full_matches(pattern: str, paths: Iterable[str]) -> frozenset[str]:
    """Return the paths that equal the pattern as a whole: `re.fullmatch` (PEFT, target_modules)."""
    automaton = _automaton(pattern)
    return frozenset(path for path in paths if automaton.isinstance_python(path))


def suffix_matches(pattern: str, paths: Iterable[str]) -> frozenset[str]:
    r"""Return the paths that end with the pattern, from a dot on: `re.match(r"(.*\.)?(…)$")`
    (PEFT, rank_pattern and alpha_pattern)."""
    if is_plain(pattern):
        ending = re.compile(rf"(?:.*\.)?{pattern}")
        return frozenset(path for path in paths if ending.fullmatch(path))
    return full_matches(rf"(?:.*\.)?(?:{pattern})", paths)


def _automaton(pattern: str) -> SchemaValidator:
    # Not kept: tenants' automata may be large, one lives at a time.
    for unicode, ascii_only in _ASCII.items():
        pattern = pattern.replace(unicode, ascii_only)
    schema = core_schema.str_schema(pattern=rf"\A(?:{pattern})\z", regex_engine="rust-regex")
    return SchemaValidator(schema)
