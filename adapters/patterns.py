r"""Regular expressions from tenants, matched as PEFT matches them, in bounded time.

Python's `re` backtracks: `(.|.)(.|.)…` from an upload would occupy a process for years. So most
patterns are run by the automaton that pydantic has from Rust's `regex` crate, whose time is
proportional to pattern × path. The two dialects agree on a subset: letters, digits, `_`, `-`, `.`,
`\.`, `\d`, `\w`, `\b`, `^`, `$`, `|`, groups, simple classes such as `[0-9a-f]`, the quantifiers
`* + ?`, lazy or not, and `{m,n}` below ten on single characters. Paths are ASCII, so the classes
`\w`, `\d` and `\b` are run as their ASCII ones: those of Unicode take a hundred times as long to
compile. Patterns beyond the subset, such as `(?!…)` and `(?i)`, run in `re` after all, in a process
of their own that is ended when it takes too long (`pattern_process.py`).
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pydantic_core import SchemaError, SchemaValidator, core_schema

from loraplex.adapters.pattern_process import Kind, Query, solve

MAX_PATTERN_CHARS = 1024

_ITEM = r"(?:[0-9A-Za-z_]-[0-9A-Za-z_]|[0-9A-Za-z_.]|\\[dw.-])"
_TOKEN = (
    rf"[0-9A-Za-z_.^$|)-]|\\[dwb.-]|\((?:\?:|(?!\?))|\[\^?{_ITEM}+\]"
    r"|(?:[*+?]|(?<!\))\{[0-9](?:,[0-9]?)?\})\??(?![*+?{])"
)
# Possessive, so that this check is itself linear.
_SUBSET = re.compile(rf"(?:{_TOKEN})*+")
# Ranges of them cost `re` seconds to compile, and no module's name has any.
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]|\\[uUN]")
# Python warns that later versions will read such sets otherwise.
_AMBIGUOUS_SET = re.compile(r"\[[^\]]*(?:\[|--|&&|~~|\|\|)")
_PLAIN = re.compile(r"[0-9A-Za-z_.-]*")
_ASCII = MappingProxyType({r"\w": "[0-9A-Za-z_]", r"\d": "[0-9]", r"\b": r"(?-u:\b)"})


def is_plain(pattern: str) -> bool:
    """True for a name, possibly with dots: nothing in it repeats, so that it needs no automaton."""
    return _PLAIN.fullmatch(pattern) is not None


def refusal(pattern: str, kind: Kind = Kind.FULL) -> str | None:
    """Say why a pattern is refused, or return None if it can be matched as PEFT matches it."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"is longer than {MAX_PATTERN_CHARS} characters"
    if is_plain(pattern):
        return None
    if not _is_linear(pattern):
        return _refusal_of_hard(pattern, kind)
    try:
        _compile(pattern, kind)
        _automaton(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is not a regular expression where PEFT puts it: {error}"
    except SchemaError as error:
        return f"is not a regular expression: {str(error).splitlines()[-1]}"
    return None


def _refusal_of_hard(pattern: str, kind: Kind) -> str | None:
    if _BEYOND_ASCII.search(pattern):
        return "has a character beyond ASCII, which no module's name has"
    if _AMBIGUOUS_SET.search(pattern):
        return "has a set that a later Python would read otherwise"
    try:
        _compile(pattern, kind)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is not a regular expression where PEFT puts it: {error}"
    return None


def _compile(pattern: str, kind: Kind) -> None:
    # By itself too: "a)|(b" closes the group that PEFT puts around it.
    re.compile(pattern)
    re.compile(kind.expression(pattern))


@dataclass(frozen=True, slots=True)
class Matcher:
    """Matches patterns; what was solved in advance costs no process any more."""

    solved: Mapping[Query, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, queries: Iterable[Query], paths: Collection[str]) -> "Matcher":
        """Solve all that the automaton cannot in one process.

        Raises:
            PatternTimeout: it did not end in time.
        """
        hard = tuple(dict.fromkeys(query for query in queries if _is_hard(query)))
        return cls(MappingProxyType(solve(hard, paths)))

    def full(self, pattern: str, paths: Collection[str]) -> frozenset[str]:
        """Return the paths that equal the pattern as a whole: `re.fullmatch` (PEFT,
        target_modules).

        Raises:
            PatternTimeout: it did not end in time.
        """
        if _is_hard(Query(Kind.FULL, pattern)):
            return frozenset(self._solution(Query(Kind.FULL, pattern), paths))
        return _run(pattern, paths)

    def suffix(self, pattern: str, paths: Collection[str]) -> frozenset[str]:
        r"""Return the paths that end with the pattern, from a dot on: `re.match(r"(.*\.)?(…)$")`
        (PEFT, rank_pattern and alpha_pattern).

        Raises:
            PatternTimeout: it did not end in time.
        """
        if is_plain(pattern):
            ending = re.compile(rf"(?:.*\.)?{pattern}")
            return frozenset(path for path in paths if ending.fullmatch(path))
        if _is_hard(Query(Kind.SUFFIX, pattern)):
            return frozenset(self._solution(Query(Kind.SUFFIX, pattern), paths))
        return _run(rf"(?:.*\.)?(?:{pattern})", paths)

    def layers(self, pattern: str, paths: Collection[str]) -> Mapping[str, str]:
        """Return what follows the pattern as the number of a layer, where it matches: PEFT,
        layers_pattern. Empty where the number is on a branch that was not taken.

        Raises:
            PatternTimeout: it did not end in time.
        """
        query = Query(Kind.LAYERS, pattern)
        if _is_hard(query):
            return self._solution(query, paths)
        found = {path: re.match(Kind.LAYERS.expression(pattern), path) for path in paths}
        return {path: match["idx"] for path, match in found.items() if match}

    def _solution(self, query: Query, paths: Collection[str]) -> Mapping[str, str]:
        found = self.solved.get(query)
        if found is None:
            found = solve((query,), paths)[query]
        wanted = frozenset(paths)
        return {path: number for path, number in found.items() if path in wanted}


def _is_hard(query: Query) -> bool:
    if is_plain(query.pattern):
        return False
    # The automaton tells whether, not where: it cannot give a layer's number.
    return query.kind is Kind.LAYERS or not _is_linear(query.pattern)


def _is_linear(pattern: str) -> bool:
    matched = _SUBSET.match(pattern)
    return matched is not None and matched.end() == len(pattern)


def _run(pattern: str, paths: Iterable[str]) -> frozenset[str]:
    automaton = _automaton(pattern)
    return frozenset(path for path in paths if automaton.isinstance_python(path))


def _automaton(pattern: str) -> SchemaValidator:
    # Not kept: tenants' automata may be large, one lives at a time.
    for unicode, ascii_only in _ASCII.items():
        pattern = pattern.replace(unicode, ascii_only)
    schema = core_schema.str_schema(pattern=rf"\A(?:{pattern})\z", regex_engine="rust-regex")
    return SchemaValidator(schema)
