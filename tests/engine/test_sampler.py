import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loraplex.engine.plan import SampleSpec
from loraplex.engine.sampler import sample, uniform

INF = math.inf


def spec(temperature=1.0, *, top_p=1.0, top_k=0, seed=0, position=0):
    return SampleSpec(temperature, top_p, top_k, seed, position)


def draw(logits, **how):
    return sample(torch.tensor([logits]), [spec(**how)]).token_ids[0]


def counts(logits, num=4000, **how):
    """How often each token is drawn over seeds; rows of one batch."""
    rows = torch.tensor([logits] * num)
    return Counter(sample(rows, [spec(seed=seed, **how) for seed in range(num)]).token_ids)


def reference(logits, temperature=1.0, top_k=0, top_p=1.0):
    """Exact probabilities, written plainly."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = order[: top_k or len(order)]
    weights = [math.exp((logits[i] - max(logits)) / temperature) for i in order]
    kept, mass = [], 0.0
    for i, weight in zip(order, weights, strict=True):
        kept.append((i, weight))
        mass += weight
        if mass >= top_p * sum(weights):
            break
    return {i: weight / mass for i, weight in kept}


def chi_square(found, probabilities):
    """Pearson's statistic minus its mean, in standard deviations."""
    num = sum(found.values())
    expected = {token: num * share for token, share in probabilities.items()}
    assert set(found) <= set(expected)
    freedom = len(expected) - 1
    statistic = sum((found[t] - mean) ** 2 / mean for t, mean in expected.items())
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 3},
        {"top_k": 100},
        {"top_p": 0.7},
        {"top_p": 0.9, "temperature": 2.0},
        {"top_p": 0.8, "top_k": 4, "temperature": 1.5},
    ],
)
def test_tokens_are_drawn_with_their_exact_probabilities(how):
    logits = [1.0, 0.2, 2.5, -1.0, 1.7, 0.0, 2.4, -0.5]
    assert chi_square(counts(logits, **how), reference(logits, **how)) < 3


def test_a_wrong_distribution_would_be_noticed():
    logits = [1.0, 0.2, 2.5, -1.0, 1.7, 0.0, 2.4, -0.5]
    assert chi_square(counts(logits, temperature=1.0), reference(logits, temperature=1.1)) > 3


@given(
    st.lists(st.integers(-3, 3), min_size=2, max_size=12),
    st.integers(0, 13),
    st.floats(0.01, 1.0),
    st.integers(0, 2**63),
)
@settings(max_examples=200)
def test_only_tokens_that_top_k_and_top_p_keep_are_drawn(logits, top_k, top_p, seed):
    top_k = min(top_k, len(logits))
    # A share away from any sum, so that rounding decides nothing.
    allowed = reference(logits, 1.0, top_k, top_p + 1e-4) | reference(logits, 1.0, top_k, top_p)
    found = draw([float(x) for x in logits], top_k=top_k, top_p=top_p, seed=seed)
    assert found in allowed


def test_greedy_takes_the_lowest_id_among_the_largest():
    assert draw([0.0, 5.0, 1.0, 5.0, 5.0], temperature=0.0) == 1


def test_top_k_takes_the_lowest_ids_among_equals():
    assert set(counts([1.0] * 6, num=200, top_k=2)) == {0, 1}


def test_top_p_takes_the_lowest_ids_among_equals():
    assert set(counts([1.0] * 6, num=200, top_p=0.5)) == {0, 1, 2}


@pytest.mark.parametrize(
    "how", [{"top_k": 1}, {"top_p": 0.0}, {"top_p": 1e-9}, {"temperature": 1e-300}]
)
def test_the_narrowest_choice_is_the_largest_logit(how):
    assert draw([0.0, 3.0, 2.999], **how) == 1


def test_large_logits_do_not_overflow():
    assert set(counts([3e38, 3e38, -3e38], num=100)) == {0, 1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "row", [[math.nan, 1.0, 2.0], [1.0, INF, 2.0], [-INF, -INF, -INF], [INF, -INF, math.nan]]
)
def test_a_row_that_is_not_finite_fails_alone(row, temperature):
    good = [0.0, -INF, 50.0]
    logits = torch.tensor([good, row, good])
    assert sample(logits, [spec(temperature)] * 3).token_ids == [2, None, 2]


@pytest.mark.parametrize("how", [{}, {"top_p": 0.99}, {"top_k": 3}, {"temperature": 50.0}])
def test_a_forbidden_token_is_never_drawn(how):
    assert set(counts([-INF, 0.0, -INF, 0.1], num=300, **how)) == {1, 3}


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (math.nextafter(1, 0), 3)])
def test_the_ends_of_the_unit_interval_belong_to_the_outermost_allowed_tokens(
    monkeypatch, number, token
):
    monkeypatch.setattr("loraplex.engine.sampler.uniform", lambda seed, position: number)
    assert draw([-INF, 0.3, -INF, 0.7, -INF]) == token


def test_a_row_draws_the_same_alone_and_in_any_batch():
    torch.manual_seed(0)
    logits = 3 * torch.randn(12, 1031)
    logits[5, 7] = math.nan
    hows = [{}, {"top_k": 40}, {"top_p": 0.9}, {"top_k": 9, "top_p": 0.5, "temperature": 2.0}]
    specs = [spec(**hows[row % 4], seed=row, position=row) for row in range(12)]
    specs[3] = spec(0.0)
    alone = [sample(logits[row : row + 1], [specs[row]]).token_ids[0] for row in range(12)]
    assert sample(logits, specs).token_ids == alone
    order = torch.randperm(12).tolist()
    shuffled = sample(logits[order], [specs[row] for row in order]).token_ids
    assert shuffled == [alone[row] for row in order]


def test_the_logits_are_left_as_they_were():
    logits = torch.randn(3, 50)
    before = logits.clone()
    sample(logits, [spec(top_k=5), spec(top_p=0.5), spec(0.0)])
    assert torch.equal(logits, before)


def test_a_batch_without_rows_draws_nothing():
    assert sample(torch.empty(0, 5), []).token_ids == []


def test_greedy_rows_are_not_copied_to_the_host(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: pytest.fail("copied"))
    assert sample(torch.eye(3), [spec(0.0)] * 3).token_ids == [0, 1, 2]


def test_the_uniform_number_never_changes():
    assert uniform(seed=1, position=2) == 0.6540750295251797
    assert uniform(seed=-1, position=0) == uniform(seed=2**64 - 1, position=0)


def test_uniform_numbers_fill_the_unit_interval_evenly():
    found = [uniform(seed, position) for seed in range(200) for position in range(50)]
    assert min(found) >= 0
    assert max(found) < 1
    histogram = np.histogram(found, bins=20, range=(0, 1))[0]
    assert ((histogram - 500) ** 2 / 500).sum() < 19 + 3 * math.sqrt(38)


@pytest.mark.parametrize(("seeds", "positions"), [(range(5000), [0]), ([7], range(5000))])
def test_neighbouring_seeds_and_positions_are_unrelated(seeds, positions):
    found = np.array([uniform(seed, position) for seed in seeds for position in positions])
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 3 / math.sqrt(5000)
