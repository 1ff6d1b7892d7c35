"""The comparison of the simulator with the engine; no number is asserted."""

from pathlib import Path

import pytest
from tests import tiny_models

from loraplex.engine.cost import CostModel, Subject
from loraplex.platform.bench.fidelity import Bench, FidelityPlan, measure_fidelity
from loraplex.platform.settings import Settings

PLAN = FidelityPlan(
    seconds=1.0, learn_requests=4, mean_prompt_tokens=8.0, mean_output_tokens=5.0, pool_requests=3
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("tiny")
    model = tiny_models.save_model(folder, tiny_models.llama_config())
    return Settings(model=str(model), data_dir=tmp_path_factory.mktemp("data"), threads=1)


def test_each_output_is_as_long_as_the_trace_says(settings: Settings, tmp_path: Path) -> None:
    bench = Bench(settings, PLAN, tmp_path)
    requests = bench.requests(PLAN, 5.0, 2.0, seed=0)
    run, watch = bench.replay(requests, CostModel(Subject("tiny", "cpu")))
    assert [r.output_tokens for r in run.records] == [r.output_tokens for r in requests]
    assert all(r.started_s is not None and r.started_s >= r.arrival_s for r in run.records)
    assert watch.costs.num_steps == run.num_steps > 0


def test_both_are_told_with_the_error_between_them(settings: Settings) -> None:
    result = measure_fidelity(settings, PLAN, lambda _: None)
    compared = {each.name: each for each in result.compared}
    assert {"tokens_per_s", "p50_ttft_s", "p99_ttft_s", "p50_tpot_s", "max_diff"} <= set(compared)
    throughput = compared["tokens_per_s"]
    assert throughput.engine > 0
    assert throughput.error == pytest.approx(throughput.simulated / throughput.engine - 1)
