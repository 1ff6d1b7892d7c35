import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.lengths import OutputLengths

SHORT, LONG = AdapterKey("t", "short"), AdapterKey("t", "long")


def learned(seed: int = 0) -> OutputLengths:
    rng, lengths = random.Random(seed), OutputLengths()
    for _ in range(200):
        lengths.observe(SHORT, rng.randint(8, 12))
        lengths.observe(LONG, rng.randint(400, 600))
    return lengths


def test_each_adapter_is_predicted_by_its_own_lengths() -> None:
    lengths = learned()
    assert lengths.predict(SHORT, 1024) == pytest.approx(10, abs=2 + 245 * 4 / 54)
    assert lengths.predict(LONG, 1024) == pytest.approx(500, rel=0.15)


def test_an_adapter_that_nobody_knows_is_predicted_by_all_others() -> None:
    assert 150 < learned().predict(AdapterKey("t", "new"), 1024) < 400


def test_before_anything_has_ended_the_prior_is_predicted() -> None:
    assert OutputLengths(prior_tokens=100).predict(None, 1024) == pytest.approx(100, rel=0.15)


def test_a_change_of_length_is_followed_within_a_hundred_outputs() -> None:
    lengths = learned()
    for _ in range(100):
        lengths.observe(SHORT, 300)
    assert lengths.predict(SHORT, 1024) > 200


def test_an_output_that_outlives_all_others_is_expected_to_go_on_as_long_again() -> None:
    lengths = OutputLengths(prior_tokens=10)
    assert lengths.predict(None, 4096, generated=1000) == 2000


def test_a_high_quantile_covers_the_long_outputs_and_a_low_one_only_the_short() -> None:
    lengths = OutputLengths()
    for i in range(100):
        lengths.observe(None, 1000 if i % 4 == 0 else 10)
    assert lengths.quantile(None, 4096, 0.95) >= 1000
    assert lengths.quantile(None, 4096, 0.5) < 20


@given(
    st.lists(st.integers(-3, 2**40), max_size=30),
    st.integers(1, 10_000),
    st.integers(0, 9_999),
    st.floats(0.01, 1.0),
)
def test_predictions_stay_between_what_is_generated_and_the_cap(
    observed: list[int], max_tokens: int, generated: int, share: float
) -> None:
    lengths = OutputLengths()
    for length in observed:
        lengths.observe(None, length)
    expected = lengths.predict(None, max_tokens, generated)
    assert min(generated + 1, max_tokens) <= expected <= max_tokens
    assert 1 <= lengths.quantile(None, max_tokens, share) <= max_tokens
