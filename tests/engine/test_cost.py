from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from loraplex.engine.cost import CostModel, Subject
from loraplex.engine.cost_errors import Choice, DriftAlarm, ErrorWindow, decision_regret
from loraplex.engine.cost_features import Row, Rows, StepFeatures
from loraplex.engine.cost_metrics import CostCollector
from loraplex.engine.errors import CostModelInvalid


def all_of(rows: list[Row]) -> Rows:
    """Decodes as arrays, and others; of a list that has decodes first."""
    decodes = [row for row in rows if row.is_decode]
    start, rank = (np.array([row[i] for row in decodes], float) for i in (1, 2))
    return Rows(start, rank, [row for row in rows if not row.is_decode])


Machine = Callable[[StepFeatures], float]


def with_one_edge(step: StepFeatures) -> float:
    """A machine on which the 129th row costs half as much as the 128 before."""
    return 20 + 0.01 * step.num_tokens + 10 * (step.num_tokens > 128) + 2e-5 * step.kv_tokens


def random_step(rng: np.random.Generator) -> StepFeatures:
    num_decodes, is_prefill = int(rng.integers(1, 120)), rng.random() < 0.5
    rows = [Row(1, int(rng.integers(20, 2000)), 1.0, is_decode=True) for _ in range(num_decodes)]
    if is_prefill:
        rows.append(
            Row(int(rng.integers(8, 400)), int(rng.integers(0, 1000)), 16.0, is_decode=False)
        )
    in_flight = int(rng.choice([0, 100_000_000]))
    return StepFeatures.of(rows, num_adapters=4, bytes_in_flight=in_flight)


def taught(machine: Machine, num_steps: int, noise: float = 0.02, seed: int = 0) -> CostModel:
    model, rng = CostModel(Subject("model", "device")), np.random.default_rng(seed)
    for _ in range(num_steps):
        step = random_step(rng)
        model.observe(step, machine(step) * (1 + rng.normal(0, noise)))
    return model


def test_a_machine_with_a_hardware_step_is_learned_within_300_steps() -> None:
    model = taught(with_one_edge, 600)
    assert model.errors(300).p95 < 0.06


def test_the_edge_is_found_and_no_other_is_made_up() -> None:
    assert taught(with_one_edge, 600).edges == (128,)


def test_what_any_prompt_costs_at_all_is_told_from_what_its_tokens_cost() -> None:
    def with_another_path(step: StepFeatures) -> float:
        return 20 + 0.1 * step.num_tokens + 50 * (step.prefill_tokens > 0)

    model = taught(with_another_path, 600)
    assert model.edges == ()
    alone = StepFeatures.of([Row(1, 300, 0.0, is_decode=True)] * 20)
    assert model.predict_ms(alone) == pytest.approx(22, rel=0.1)
    assert model.predict_ms(alone.with_chunk(10, 0)) == pytest.approx(73, rel=0.05)
    assert model.predict_chunks_ms(alone, [10, 100], 0) == pytest.approx([73, 82], rel=0.05)


def test_attention_within_prompts_is_that_of_prompts_of_their_length() -> None:
    model = taught(lambda step: 20 + 1e-3 * step.prefill_squared, 600)
    step = StepFeatures.of([Row(1, 300, 0.0, is_decode=True)])
    whole, divided, without = (
        model.predict_chunks_ms(step, [300], 0, longest)[0] for longest in (inf, 100, 0)
    )
    assert (whole, divided, without) == pytest.approx((110, 50, 20), rel=0.1)


def test_no_edge_is_made_up_on_a_smooth_machine() -> None:
    assert taught(lambda step: 10 + 0.1 * step.num_tokens, 600).edges == ()


def test_a_machine_that_gets_slower_is_predicted_again_within_200_steps() -> None:
    model = taught(with_one_edge, 1000)
    rng = np.random.default_rng(7)
    for _ in range(400):
        step = random_step(rng)
        ms = (1.3 * with_one_edge(step) + 2) * (1 + rng.normal(0, 0.02))
        model.observe(step, ms)
    assert model.num_alarms >= 1
    assert model.errors(200).p95 <= 0.10


def test_a_quiet_machine_raises_no_alarm() -> None:
    assert taught(with_one_edge, 2000, noise=0.05).num_alarms == 0


def test_a_single_hiccup_of_a_hundred_times_the_usual_is_shrugged_off() -> None:
    model = taught(with_one_edge, 500)
    step = random_step(np.random.default_rng(3))
    before = model.predict_ms(step)
    model.observe(step, 100 * before)
    for _ in range(70):  # until it has been fitted in
        other = random_step(np.random.default_rng(4))
        model.observe(other, with_one_edge(other))
    assert model.predict_ms(step) == pytest.approx(before, rel=0.15)


def test_candidates_are_predicted_together_as_they_are_one_by_one() -> None:
    model, step = taught(with_one_edge, 400), random_step(np.random.default_rng(1))
    sizes = np.arange(1, 65) * 8
    together = model.predict_chunks_ms(step, sizes, start=100)
    alone = [model.predict_ms(step.with_chunk(int(size), 100)) for size in sizes]
    assert together == pytest.approx(alone)


def test_the_shares_of_a_step_sum_to_its_time_and_the_larger_part_counts() -> None:
    model = taught(with_one_edge, 400)
    rows = [
        Row(1, 10, 0.0, is_decode=True),
        Row(1, 4000, 0.0, is_decode=True),
        Row(100, 0, 16.0, is_decode=False),
    ]
    shares = model.shares(all_of(rows), 50.0)
    assert shares.sum() == pytest.approx(50.0)
    assert shares[1] > 2 * shares[0]


def test_a_request_costs_what_its_steps_do_when_it_is_alone() -> None:
    model = CostModel(Subject("model", "device"))
    steps = [StepFeatures.of([Row(40, 0, 0.0, is_decode=False)])]
    steps += [StepFeatures.of([Row(1, 40 + i, 0.0, is_decode=True)]) for i in range(30)]
    for step in steps * 20:
        model.observe(step, 5 + 0.1 * step.num_tokens)
    predicted = model.request_ms(40, 0, 30)
    alone = sum(5 + 0.1 * step.num_tokens for step in steps)
    assert predicted == pytest.approx(alone / 2, rel=0.4)


def test_what_was_learned_is_saved_and_goes_on_elsewhere() -> None:
    model, step = taught(with_one_edge, 400), random_step(np.random.default_rng(1))
    again = CostModel.from_json(model.to_json())
    assert again.subject == Subject("model", "device")
    model.observe(step, 30.0)
    assert again.predict_ms(step) == pytest.approx(model.predict_ms(step), rel=0.05)
    assert again.edges == (128,)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"format": 1}'])
def test_what_is_no_saved_model_is_refused(data: bytes) -> None:
    with pytest.raises(CostModelInvalid):
        CostModel.from_json(data)


def test_a_saved_model_of_other_features_is_refused() -> None:
    saved = taught(with_one_edge, 10).to_json().replace(b'"edges":[16,', b'"edges":[17,')
    with pytest.raises(CostModelInvalid, match="another version"):
        CostModel.from_json(saved)


counts = st.integers(0, 10**9)
features = st.builds(
    StepFeatures,
    num_tokens=counts,
    num_decodes=counts,
    prefill_tokens=counts,
    prefill_squared=st.floats(0, 1e15),
    prefill_context=st.floats(0, 1e15),
    kv_tokens=counts,
    sum_rank=st.floats(0, 1e6),
    num_adapters=counts,
    bytes_in_flight=st.integers(0, 10**13),
)
times = st.one_of(
    st.floats(1e-6, 1e9), st.sampled_from([0.0, -1.0, float("nan"), float("inf"), 5e-324])
)


@given(st.lists(st.tuples(features, times), max_size=40), features)
def test_predictions_are_finite_and_never_negative_whatever_was_measured(
    measured: list[tuple[StepFeatures, float]], step: StepFeatures
) -> None:
    model = CostModel(Subject("model", "device"))
    for seen, ms in measured:
        model.observe(seen, ms)
    assert 0 <= model.predict_ms(step) < float("inf")
    assert (model.predict_chunks_ms(step, [1, 8, 512], 100) >= 0).all()
    assert 0 <= model.request_ms(100, 50, 20.0, 16.0, 10**8) < float("inf")


rows = st.builds(
    Row, st.integers(1, 10_000), st.integers(0, 10**6), st.floats(0, 512), st.booleans()
)


@given(st.lists(rows, max_size=50), st.floats(0, 1e6))
def test_shares_always_sum_to_the_time_and_none_is_negative(
    chunks: list[Row], step_ms: float
) -> None:
    shares = taught(with_one_edge, 32).shares(all_of(chunks), step_ms)
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(step_ms if chunks else 0.0)


def test_error_percentiles_are_of_the_newest_steps() -> None:
    errors = ErrorWindow()
    for _ in range(1000):
        errors.add(-0.5)
    for _ in range(100):
        errors.add(0.1)
    newest = errors.percentiles(100)
    assert (newest.p50, newest.p99, newest.num_steps) == (0.1, 0.1, 100)
    assert errors.percentiles().num_steps == 512


def test_an_alarm_is_raised_by_a_shift_and_not_by_noise() -> None:
    alarm, rng = DriftAlarm(), np.random.default_rng(0)
    assert not any(alarm.observe(rng.normal(0, 0.05)) for _ in range(2000))
    assert any(alarm.observe(rng.normal(0.2, 0.05)) for _ in range(20))


def test_regret_is_the_part_of_the_best_rate_that_the_choice_missed() -> None:
    tokens, measured = [10, 20, 30], [10.0, 10.0, 30.0]
    assert decision_regret(measured, measured, tokens) == 0
    assert decision_regret([10.0, 20.0, 10.0], measured, tokens) == pytest.approx(0.5)


def test_a_choice_that_breaks_the_limit_loses_as_much_as_it_is_late() -> None:
    predicted, measured = [10.0, 10.0], [10.0, 20.0]
    assert decision_regret(predicted, measured, [10, 20], 10.0) == pytest.approx(0.5)


def test_choices_are_judged_by_what_is_known_64_steps_later() -> None:
    model = taught(with_one_edge, 400)
    step = StepFeatures.of([Row(1, 500, 1.0, is_decode=True)] * 8)
    best = Choice(step, np.array([64, 120, 121]), 1, inf)
    bad = Choice(step, np.array([64, 120, 121]), 0, inf)
    for choice in (best, bad):
        for _ in range(8):
            model.note_choice(choice)
    assert model.regrets().num_steps == 0
    rng = np.random.default_rng(5)
    for _ in range(64):
        other = random_step(rng)
        model.observe(other, with_one_edge(other))
    model.note_choice(best)
    regrets = model.regrets()
    assert regrets.num_steps == 2
    assert regrets.p99 == pytest.approx(1 - 64 / 120, abs=0.1)
    assert regrets.p50 == pytest.approx(regrets.p99 / 2, abs=0.02), "half of them lost nothing"


def test_how_well_it_predicts_is_told_as_metrics() -> None:
    model, registry = taught(with_one_edge, 400), CollectorRegistry()
    registry.register(CostCollector(model))
    text = generate_latest(registry).decode()
    errors = model.errors()
    assert f'loraplex_cost_error_ratio{{quantile="0.95"}} {errors.p95}' in text
    assert 'loraplex_cost_regret_ratio{quantile="0.5"} 0.0' in text
    assert "loraplex_cost_drift_alarms_total 0.0" in text
    assert "loraplex_cost_steps 400.0" in text
