"""What counts as the same, position by position."""

from math import nan

import pytest

from loraplex.engine.self_test.comparison import TOLERANCES, Position, ServedTokens, compare
from loraplex.engine.self_test.prompts import ProbePrompt

FLOAT32 = TOLERANCES["float32"]


def position(**changes: object) -> Position:
    values = {
        "is_finite": True,
        "best": 7,
        "margin": 2.0,
        "max_abs_logit": 20.0,
        "logprob": -1.0,
        "base_logprob": -3.0,
    }
    return Position(**(values | changes))


def served(*drawn: tuple[int, float]) -> list[ServedTokens]:
    tokens, logprobs = zip(*drawn, strict=True)
    return [ServedTokens(ProbePrompt((1, 2)), tokens, logprobs)]


def test_what_is_alike_within_the_tolerance_passes() -> None:
    found = compare(
        served((7, -1.0), (7, -1.0019)), [[position(), position(margin=0.00009)]], FLOAT32
    )
    assert found.passed
    assert (found.num_tokens, found.num_compared) == (2, 1)
    assert found.max_abs_logprob_diff == pytest.approx(0.0019)
    assert found.tolerance == pytest.approx(0.002)
    assert found.max_abs_change == 2.0
    assert found.detail == ""


@pytest.mark.parametrize(
    ("drawn", "changes", "words"),
    [
        ((8, -1.0), {}, "is 8 as served and 7 by the reference"),
        ((8, -1.0), {"margin": 0.00011}, "is 8 as served"),
        ((7, -1.0021), {}, "log-probability -1.0021"),
        ((7, nan), {}, "log-probability nan"),
    ],
)
def test_what_differs_fails_and_is_named(
    drawn: tuple[int, float], changes: dict[str, object], words: str
) -> None:
    found = compare(served((7, -1.0), drawn), [[position(), position(**changes)]], FLOAT32)
    assert not found.passed
    assert found.detail.startswith("token 2 after test prompt 1 ")
    assert words in found.detail


def test_rounding_may_choose_between_two_that_are_as_likely() -> None:
    found = compare(served((8, -1.0)), [[position(margin=0.00009)]], FLOAT32)
    assert found.passed
    assert found.num_compared == 0
    assert found.detail.startswith("no token could be compared")


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_logits_beyond_all_measure_that_leave_nothing_to_compare_fail(dtype: str) -> None:
    huge = position(margin=0.0, max_abs_logit=1e18)
    found = compare(served((8, -90.0)), [[huge]], TOLERANCES[dtype])
    assert not found.passed
    assert found.detail.startswith("nothing could be compared: logits with the adapter reach 1e+18")
    assert (found.num_tokens, found.num_compared) == (1, 0)


def test_the_margin_of_other_types_grows_with_the_logits() -> None:
    tolerance = TOLERANCES["bfloat16"]
    for margin, passes in ((0.39, True), (0.41, False)):
        found = compare(served((8, -1.0)), [[position(margin=margin)]], tolerance)
        assert found.passed is passes


def test_a_token_without_a_log_probability_is_compared_by_itself() -> None:
    half = [ServedTokens(ProbePrompt((1,)), (7, 7), (-1.0,))]
    assert compare(half, [[position(), position()]], FLOAT32).passed
    found = compare(half, [[position(), position(best=9)]], FLOAT32)
    assert not found.passed


def test_a_reference_without_numbers_passes_nothing() -> None:
    found = compare(served((7, -1.0)), [[Position(is_finite=False)]], FLOAT32)
    assert not found.passed
    assert "not finite" in found.detail


@pytest.mark.parametrize(
    ("base_logprob", "words"), [(-1.0, "changes nothing"), (-1.001, "less than the test can see")]
)
def test_a_test_that_could_not_tell_says_so(base_logprob: float, words: str) -> None:
    found = compare(served((7, -1.0)), [[position(base_logprob=base_logprob)]], FLOAT32)
    assert found.passed
    assert words in found.detail
