import re
import time

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from peft.utils.other import get_pattern_key

from loraplex.adapters import pattern_process, patterns
from loraplex.adapters.errors import PatternTimeout
from loraplex.adapters.pattern_process import Kind, Query
from loraplex.adapters.patterns import Matcher, refusal

ATOMS = st.sampled_from(
    ["a", "b", "1", "_", ".", r"\.", r"\d", r"\w", r"\b", "^", "$", "[ab]", "[^a]", "[0-9]", "[a.]"]
)
QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "*?", "+?", "{2}", "{1,}", "{0,2}"])
QUANTIFIED = st.builds(lambda atom, many: atom + many, ATOMS, QUANTIFIERS)
PATTERNS = st.recursive(
    st.lists(QUANTIFIED, max_size=4).map("".join),
    lambda inner: st.builds(
        lambda parts, opening, many: f"{opening}{'|'.join(parts)}){many}",
        st.lists(inner, min_size=1, max_size=3),
        st.sampled_from(["(", "(?:"]),
        st.sampled_from(["", "*", "+", "?"]),
    ),
    max_leaves=5,
)
PATHS = st.lists(st.text("ab1_.", max_size=8), max_size=4)


@given(PATTERNS, PATHS)
def test_an_accepted_pattern_matches_what_python_matches(pattern, paths):
    assume(refusal(pattern) is None)
    assert Matcher().full(pattern, paths) == {p for p in paths if re.fullmatch(pattern, p)}
    assert Matcher().suffix(pattern, paths) == {
        p for p in paths if re.match(rf"(.*\.)?({pattern})$", p)
    }


@given(st.lists(PATTERNS | st.sampled_from(["(", ")", ")|(", "?:", "|"]), max_size=5), PATHS)
@example(["self_attn)|(up_proj"], ["self_attn.q_proj", "up_proj"])
def test_a_rule_is_refused_or_matches_what_peft_matches_whatever_its_parentheses(parts, paths):
    rule = "".join(parts)
    if refusal(rule, Kind.SUFFIX) is None:
        # A path that no rule matches is its own key, and may be spelled as the rule is.
        matched = {path for path in paths if path != rule and get_pattern_key([rule], path) == rule}
        assert Matcher().suffix(rule, paths) - {rule} == matched


@pytest.mark.parametrize("rule", ["self_attn)|(up_proj", "?:q_proj", "?i:Q_PROJ", "(?i:a))|(b"])
def test_a_rule_that_closes_or_opens_peft_s_own_group_is_refused(rule):
    re.compile(Kind.SUFFIX.expression(rule))
    reason = refusal(rule, Kind.SUFFIX)
    assert reason is not None
    assert "is not a regular expression" in reason


@pytest.mark.parametrize(
    "pattern",
    [
        "q_proj",
        "model.layers.0.self_attn.q_proj",
        r".*\.(\d+)\.self_attn\.(q|k|v)_proj$",
        r"(?:.*?(?:text).*?(?:q_proj|v_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:q_proj))",
    ],
)
def test_patterns_that_trainers_write_are_accepted(pattern):
    assert refusal(pattern) is None


HARD = [
    "(?!a)b.*",
    ".*(?<=a)b",
    r"(a|b)\1",
    r".*(?<!\.)b",
    "(?P<n>a)(?P=n)",
    "(?i)A.*",
    "(?s:.)+",
    "a*+.*",
    r"\S+",
    r"[\w-]+",
    "[b-]a?",
    "a{2,12}",
    "(?:ab){2}",
    r"(?x) a . * # comment",
]
HARD_PATHS = ["a", "b", "aa", "bb", "ab", "aaaa", "abab", "a.b", "A.b", "b.a.b", "1", ""]


@pytest.mark.parametrize("pattern", HARD)
def test_what_the_automaton_cannot_do_is_matched_by_python_itself(pattern):
    assert refusal(pattern) is None
    expected = {path for path in HARD_PATHS if re.fullmatch(pattern, path)}
    assert Matcher().full(pattern, HARD_PATHS) == expected


@pytest.mark.parametrize("pattern", [pattern for pattern in HARD if not pattern.startswith("(?i)")])
def test_rules_beyond_the_automaton_are_matched_as_peft_matches_them(pattern):
    try:
        as_peft_does = re.compile(rf"(.*\.)?({pattern})$")
    except re.error:
        assert "not a regular expression" in refusal(pattern, Kind.SUFFIX)
        return
    expected = {path for path in HARD_PATHS if as_peft_does.match(path)}
    assert refusal(pattern, Kind.SUFFIX) is None
    assert Matcher().suffix(pattern, HARD_PATHS) == expected


LAYERED = ["model.layers.3.mlp", "model.h.12.mlp.experts.4.up", "layers.5.a", "blocks.1.x", "mlp"]


@pytest.mark.parametrize(
    "pattern", ["layers", "h", "model.h", r"(?:layers|h)", r"layers|h", ".*s", r"h\b", "(?!mod).*"]
)
def test_the_number_of_a_layer_is_the_one_that_peft_finds(pattern):
    as_peft_does = re.compile(rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\.")
    found = {path: as_peft_does.match(path) for path in LAYERED}
    expected = {path: match["idx"] or "" for path, match in found.items() if match}
    assert refusal(pattern, Kind.LAYERS) is None
    assert Matcher().layers(pattern, LAYERED) == expected


def test_a_rule_with_a_flag_is_refused_where_peft_puts_it_in_the_midst_of_an_expression():
    assert refusal("(?i)a") is None
    assert "not a regular expression where PEFT puts it" in refusal("(?i)a", Kind.SUFFIX)


@pytest.mark.parametrize("pattern", ["[a--b](?=c)", "[[a](?=c)", "[a&&b](?=c)"])
def test_a_set_that_a_later_python_reads_otherwise_is_refused(pattern):
    assert "later Python" in refusal(pattern)


@pytest.mark.parametrize(
    "pattern", ["é|a", r"(?i)[\0-\U0010ffff]", r"[\u00e0-\uffff]", r"\N{DIGIT ONE}"]
)
def test_characters_beyond_ascii_are_refused(pattern):
    assert "beyond ASCII" in refusal(pattern)


def test_all_patterns_of_an_adapter_are_solved_by_one_process(monkeypatch):
    queries = [Query(Kind.FULL, "(?!a).*"), Query(Kind.SUFFIX, "(?=b)b"), Query(Kind.LAYERS, "h+")]
    calls = []
    run = pattern_process.subprocess.run
    spy = lambda *given, **named: calls.append(given) or run(*given, **named)  # noqa: E731  one line
    monkeypatch.setattr(pattern_process.subprocess, "run", spy)
    paths = ["a", "b", "x.h.1.b"]
    matcher = Matcher.of([*queries, *queries], paths)
    assert matcher.full("(?!a).*", paths) == {"b", "x.h.1.b"}
    assert matcher.suffix("(?=b)b", ["b"]) == {"b"}
    assert matcher.layers("h+", paths) == {"x.h.1.b": "1"}
    assert len(calls) == 1


def test_patterns_that_the_automaton_can_do_need_no_process(monkeypatch):
    monkeypatch.setattr(pattern_process, "_run", None)
    assert Matcher.of([Query(Kind.FULL, "a|b")], ["a"]).full("a|b", ["a"]) == {"a"}


EXPLOSIVE = r"(?!c)(.|.|.)*d" + "(.*)*" * 20


def test_a_pattern_that_does_not_end_is_named_and_its_process_is_gone(monkeypatch):
    monkeypatch.setattr(pattern_process, "CPU_S", 1)
    monkeypatch.setattr(pattern_process, "TIMEOUT_S", 3600.0)
    queries = [Query(Kind.FULL, "(?=a)a"), Query(Kind.FULL, EXPLOSIVE)]
    with pytest.raises(PatternTimeout) as caught:
        Matcher.of(queries, ["a" * 60 + "!"])
    assert caught.value.pattern == EXPLOSIVE


def test_a_process_that_waits_for_the_processor_is_ended_too(monkeypatch):
    monkeypatch.setattr(pattern_process, "TIMEOUT_S", 0.0)
    with pytest.raises(PatternTimeout):
        Matcher.of([Query(Kind.FULL, "(?=a)a")], ["a"])


@pytest.mark.parametrize(
    "pattern", ["(a", "a)", "*a", "a**", "[b-a]", "a{3,1}", r"\pL", "(?<=a*)b"]
)
def test_what_is_no_pattern_is_refused(pattern):
    assert refusal(pattern) is not None


def test_a_pattern_beyond_the_length_limit_is_refused():
    assert "longer" in refusal("a" * 1025)


PLAIN = st.text("ab1_.-", min_size=1, max_size=6)


@given(PLAIN, PATHS)
def test_a_plain_name_matches_what_python_matches(pattern, paths):
    assert refusal(pattern) is None
    assert Matcher().suffix(pattern, paths) == {
        p for p in paths if re.match(rf"(.*\.)?({pattern})$", p)
    }


def test_a_plain_name_needs_no_automaton(monkeypatch):
    monkeypatch.setattr(patterns, "_automaton", None)
    assert refusal("model.layers.0.q_proj") is None
    assert Matcher().suffix("q_proj", ["a.q_proj", "b.xq_proj"]) == {"a.q_proj"}


@pytest.mark.parametrize("pattern", ["(.|.)" * 60, "(((.*)*)*)*" * 60, "(a|aa)*" * 60 + "b"])
def test_patterns_that_make_a_backtracking_matcher_explode_are_matched_at_once(pattern):
    started = time.process_time()
    assert refusal(pattern) is None
    assert not Matcher().full(f"{pattern}x", ["a" * 60])
    assert time.process_time() - started < 1
