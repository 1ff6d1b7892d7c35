import re
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loraplex.adapters import patterns
from loraplex.adapters.patterns import full_matches, refusal, suffix_matches

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
    assert full_matches(pattern, paths) == {p for p in paths if re.fullmatch(pattern, p)}
    assert suffix_matches(pattern, paths) == {
        p for p in paths if re.match(rf"(.*\.)?({pattern})$", p)
    }


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


@pytest.mark.parametrize(
    "pattern",
    [
        "(?!a)b",
        "(?<=a)b",
        r"(a)\1",
        "(?P<n>a)",
        "(?i)a",
        "a*+",
        "[a--b]",
        "[[a]]",
        r"\pL",
        "é",
        "a\n",
    ],
)
def test_syntax_in_which_the_dialects_might_differ_is_refused(pattern):
    assert "subset" in refusal(pattern)


@pytest.mark.parametrize("pattern", ["(a", "a)", "*a", "a**", "[b-a]", "a{3,1}"])
def test_what_is_no_pattern_is_refused(pattern):
    assert refusal(pattern) is not None


def test_a_pattern_beyond_the_length_limit_is_refused():
    assert "longer" in refusal("a" * 1025)


PLAIN = st.text("ab1_.-", min_size=1, max_size=6)


@given(PLAIN, PATHS)
def test_a_plain_name_matches_what_python_matches(pattern, paths):
    assert refusal(pattern) is None
    assert suffix_matches(pattern, paths) == {
        p for p in paths if re.match(rf"(.*\.)?({pattern})$", p)
    }


def test_a_plain_name_needs_no_automaton(monkeypatch):
    monkeypatch.setattr(patterns, "_automaton", None)
    assert refusal("model.layers.0.q_proj") is None
    assert suffix_matches("q_proj", ["a.q_proj", "b.xq_proj"]) == {"a.q_proj"}


@pytest.mark.parametrize("pattern", ["(.|.)" * 60, "(((.*)*)*)*" * 60, "(a|aa)*" * 60 + "b"])
def test_patterns_that_make_a_backtracking_matcher_explode_are_matched_at_once(pattern):
    started = time.process_time()
    assert refusal(pattern) is None
    assert not full_matches(f"{pattern}x", ["a" * 60])
    assert time.process_time() - started < 1
