from tests.engine.simulation import worlds

from loraplex.engine.simulation.cost_trial import trial_steps, try_model


def test_a_linear_device_is_learned_to_its_noise_and_learned_again_when_it_changes() -> None:
    trial = try_model(worlds.device().times, noise=0.02)
    assert trial.p95 <= 1.5 * trial.noise_p95
    assert trial.true_p95 < 4
    assert trial.drift_p95 <= 10
    assert trial.regret < 3


def test_steps_of_a_trial_are_possible_ones() -> None:
    for step in trial_steps(500, seed=0):
        assert 1 <= step.num_tokens == step.num_decodes + step.prefill_tokens <= 512
        assert step.num_adapters <= min(step.num_decodes, 32)
