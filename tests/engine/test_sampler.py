import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from loraplex.engine import sampler
from loraplex.engine.plan import Penalties, SampleSpec
from loraplex.engine.sampler import SampledRows
from loraplex.engine.sampler import sample as sample_rows
from loraplex.engine.sampling_rows import SampledSpecs, sampling_rows
from loraplex.engine.seeds import choice_seed, uniform
from loraplex.kernels.staging import Staging

INF = math.inf


def spec(temperature=1.0, *, top_p=1.0, top_k=0, seed=0, position=0, **options):
    return SampleSpec(temperature, top_p, top_k, seed, position, **options)


def sample(logits, specs) -> SampledRows:
    return sample_rows(logits, rows_of(specs, logits))


def rows_of(specs, logits):
    return sampling_rows(SampledSpecs.of(specs), logits.shape[1], Staging(logits.device))


def tokens(logits, specs):
    """Drawn token ids, None for rows that failed."""
    return drawn_of(sample(logits, specs))


def drawn_of(sampled):
    drawn = enumerate(sampled.token_ids.tolist())
    return [None if row in sampled.failed else token_id for row, token_id in drawn]


def draw(logits, **how):
    return tokens(torch.tensor([logits]), [spec(**how)])[0]


def counts(logits, num=4000, **how):
    """How often each token is drawn over seeds; rows of one batch."""
    rows = torch.tensor([logits] * num)
    return Counter(tokens(rows, [spec(seed=seed, **how) for seed in range(num)]))


def edited(logits, logit_bias=(), penalties=None, forbidden_ids=()):
    """Logits after steps 1 to 4, written plainly."""
    logits = list(logits)
    for token in forbidden_ids:
        logits[token] = -INF
    for token, bias in logit_bias:
        logits[token] += bias
    if penalties is not None:
        for token in {*penalties.prompt_ids, *penalties.output_ids}:
            r = penalties.repetition
            logits[token] = logits[token] * r if logits[token] < 0 else logits[token] / r
        for token, count in Counter(penalties.output_ids).items():
            logits[token] -= penalties.frequency * count + penalties.presence
    return logits


def reference(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, **edits):
    """Exact probabilities, written plainly."""
    logits = edited(logits, **edits)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = order[: top_k or len(order)]
    weights = [math.exp((logits[i] - max(logits)) / temperature) for i in order]
    kept, mass = [], 0.0
    for i, weight in zip(order, weights, strict=True):
        if weight < min_p:
            break
        kept.append((i, weight))
        mass += weight
        if mass >= top_p * sum(weights):
            break
    return {i: weight / mass for i, weight in kept if weight}


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
        {"min_p": 0.2},
        {"min_p": 0.1, "top_p": 0.95, "temperature": 2.0},
        {"min_p": 0.3, "top_k": 6},
        {"logit_bias": ((3, 4.0), (2, -1.5))},
        {"logit_bias": ((2, -100.0),), "top_k": 3},
        {"forbidden_ids": (2, 6)},
        {"penalties": Penalties(1.5, 0.0, 0.0, (2, 3), (6, 6))},
        {"penalties": Penalties(1.0, 0.7, 0.0, (1,), (2, 2, 4))},
        {"penalties": Penalties(1.0, 0.0, 0.4, (1,), (2, 2, 2, 4))},
        {"penalties": Penalties(0.8, -0.5, 0.3, (0, 3), (2, 4, 4)), "top_p": 0.9, "min_p": 0.05},
    ],
)
def test_tokens_are_drawn_with_their_exact_probabilities(how):
    logits = [1.0, 0.2, 2.5, -1.0, 1.7, 0.0, 2.4, -0.5]
    assert chi_square(counts(logits, num=20_000, **how), reference(logits, **how)) < 3


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
    assert tokens(logits, [spec(temperature)] * 3) == [2, None, 2]


@pytest.mark.parametrize("how", [{}, {"top_p": 0.99}, {"top_k": 3}, {"temperature": 50.0}])
def test_a_forbidden_token_is_never_drawn(how):
    assert set(counts([-INF, 0.0, -INF, 0.1], num=300, **how)) == {1, 3}


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (math.nextafter(1, 0), 3)])
def test_the_ends_of_the_unit_interval_belong_to_the_outermost_allowed_tokens(
    monkeypatch, number, token
):
    monkeypatch.setattr("loraplex.engine.sampling_rows.uniform", lambda seed, position: number)
    assert draw([-INF, 0.3, -INF, 0.7, -INF]) == token


VOCAB = 1031
IDS = st.integers(0, VOCAB - 1)
SPECS = st.builds(
    spec,
    st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    top_k=st.sampled_from([0, 1, 9, 40, 5000]),
    min_p=st.sampled_from([0.0, 0.01, 0.5]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 100),
    logit_bias=st.dictionaries(IDS, st.floats(-5, 5), max_size=4).map(lambda d: tuple(d.items())),
    penalties=st.none()
    | st.builds(
        Penalties,
        st.sampled_from([1.0, 1.3, 0.7]),
        st.sampled_from([0.0, 0.5]),
        st.sampled_from([0.0, -0.5]),
        st.lists(IDS, max_size=9, unique=True).map(tuple),
        st.lists(IDS, max_size=9).map(tuple),
    ),
    forbidden_ids=st.lists(IDS, max_size=3, unique=True).map(tuple),
    num_top_logprobs=st.none() | st.integers(0, 20),
)


@given(st.lists(SPECS, min_size=1, max_size=90), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_a_row_draws_the_same_alone_and_in_any_batch(specs, rng):
    torch.manual_seed(len(specs))
    logits = 3 * torch.randn(len(specs), VOCAB)
    logits[rng.randrange(len(specs)), 7] = math.nan
    order = rng.sample(range(len(specs)), len(specs))
    together = sample(logits[order], [specs[row] for row in order])
    for place, row in enumerate(order):
        alone = sample(logits[row : row + 1], [specs[row]])
        assert drawn_of(together)[place] == drawn_of(alone)[0]
        assert str(together.logprobs.get(place)) == str(alone.logprobs.get(0))  # NaN is not NaN


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}])
@pytest.mark.parametrize("wide", [{}, {"top_k": 40}, {"top_p": 0.99}, {"min_p": 0.5}])
def test_a_row_is_filtered_by_its_own_options_beside_others(narrow, wide):
    logits = torch.zeros(400, 50)
    logits[:, 7] += 1e-3
    specs = [spec(seed=row, **(wide if row % 2 else narrow)) for row in range(400)]
    drawn = tokens(logits, specs)
    assert set(drawn[::2]) == {7}
    assert len(set(drawn[1::2])) >= 40 - 2


def test_the_logits_are_left_as_they_were():
    logits = torch.randn(3, 50)
    before = logits.clone()
    sample(logits, [spec(top_k=5), spec(top_p=0.5), spec(0.0)])
    assert torch.equal(logits, before)


def test_a_batch_without_rows_draws_nothing():
    assert tokens(torch.empty(0, 5), []) == []


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


def test_choices_have_seeds_of_their_own_and_the_first_has_the_requests():
    seeds = [choice_seed(5, choice) for choice in range(1000)]
    assert seeds[0] == 5
    assert len(set(seeds)) == 1000
    assert choice_seed(5, 1) != choice_seed(6, 1)


@given(st.lists(IDS, min_size=1, max_size=30), st.sampled_from([0.5, 1.2, 3.0]))
@settings(max_examples=30, deadline=None)
def test_the_repetition_penalty_is_transformers(ids, penalty):
    torch.manual_seed(len(ids))
    logits = torch.randn(1, VOCAB)
    half = len(ids) // 2
    penalties = Penalties(penalty, 0.0, 0.0, tuple(set(ids[:half])), tuple(ids[half:]))
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([ids]), logits.clone())
    assert tokens(logits, [spec(0.0, penalties=penalties)]) == [int(theirs.argmax())]
    group = rows_of([spec(penalties=penalties)], logits).groups[0]
    ours = logits.clone()
    sampler._edit(ours, group.edits)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("how", "warpers"),
    [
        ({"top_k": 7}, [TopKLogitsWarper(7)]),
        ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        ({"min_p": 0.05}, [MinPLogitsWarper(0.05)]),
        (
            {"temperature": 1.7, "top_k": 50, "top_p": 0.8, "min_p": 0.1},
            [
                TemperatureLogitsWarper(1.7),
                TopKLogitsWarper(50),
                TopPLogitsWarper(0.8),
                MinPLogitsWarper(0.1),
            ],
        ),
    ],
)
def test_filters_leave_what_those_of_transformers_leave(how, warpers):
    torch.manual_seed(1)
    logits = 3 * torch.randn(8, VOCAB)
    options = rows_of([spec(**how)] * 8, logits)
    drawn = options.groups[0].drawn
    ids, sums = sampler._candidates(logits, logits.amax(dim=-1, keepdim=True), drawn, drawn.filters)
    weights = sums.diff(dim=-1, prepend=torch.zeros(8, 1))
    ours = torch.zeros(8, VOCAB, dtype=torch.float64).scatter_(1, ids, weights / sums[:, -1:])
    theirs = logits
    for warper in warpers:
        theirs = warper(None, theirs)
    torch.testing.assert_close(ours, theirs.double().softmax(dim=-1), rtol=1e-5, atol=1e-9)


def test_greedy_rows_obey_bias_penalties_and_forbidden_tokens():
    assert draw([1.0, 2.0, 3.0], temperature=0.0, logit_bias=((0, 2.5),)) == 0
    assert draw([1.0, 2.0, 3.0], temperature=0.0, forbidden_ids=(2,)) == 1
    penalties = Penalties(1.0, 0.6, 0.6, (), (2,))
    assert draw([1.0, 2.0, 3.0], temperature=0.0, penalties=penalties) == 1


def test_presence_and_frequency_leave_the_prompt_alone():
    penalties = Penalties(1.0, 2.0, 2.0, (2,), ())
    assert draw([1.0, 2.0, 3.0], temperature=0.0, penalties=penalties) == 2


def test_a_row_of_which_everything_is_forbidden_fails_alone():
    specs = [spec(0.0), spec(1.0, forbidden_ids=(0, 1)), spec(0.0, forbidden_ids=(0, 1))]
    assert tokens(torch.tensor([[0.0, 1.0]] * 3), specs) == [1, None, None]


def test_a_row_that_is_not_finite_fails_even_where_it_is_forbidden():
    specs = [spec(1.0, forbidden_ids=(0,)), spec(0.0, forbidden_ids=(0,))]
    assert tokens(torch.tensor([[INF, 1.0]] * 2), specs) == [None, None]


def test_zeros_of_both_signs_are_equals():
    assert draw([-0.0, 0.0], top_k=1) == draw([0.0, -0.0], top_k=1) == 0


def test_log_probabilities_are_the_models_own_whatever_is_drawn():
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0]] * 2)
    how = {"logit_bias": ((0, 50.0),), "top_k": 1, "num_top_logprobs": 3}
    plain = spec(0.0, num_top_logprobs=0)
    sampled = sample(logits, [spec(0.2, **how), plain])
    expected = logits[0].log_softmax(dim=-1).tolist()
    assert sampled.token_ids.tolist() == [0, 1]
    assert sampled.logprobs[0].drawn == pytest.approx(expected[0], rel=1e-6)
    assert [token for token, _ in sampled.logprobs[0].top] == [1, 3, 2]
    assert [value for _, value in sampled.logprobs[0].top] == pytest.approx(
        [expected[1], expected[3], expected[2]], rel=1e-6
    )
    assert sampled.logprobs[1].top == ()


def test_rows_that_do_not_ask_have_no_log_probabilities():
    assert sample(torch.eye(2), [spec(0.0), spec(1.0)]).logprobs == {}


def test_a_greedy_row_beside_others_is_not_worked_on():
    specs = [spec(0.0), spec(1.0), spec(0.0), spec(0.0, logit_bias=((0, 1.0),))]
    options = rows_of(specs, torch.zeros(4, 5))
    assert [group.rows.tolist() for group in options.groups] == [[3], [1]]
