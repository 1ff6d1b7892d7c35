from dataclasses import replace

import pytest
from tests.engine.simulation import worlds

from loraplex.engine.simulation.calibration import Served, fit_times
from loraplex.engine.simulation.devices import LinearTimes
from loraplex.engine.simulation.experiment import Setup, run_policy
from loraplex.engine.simulation.workload import Generated, generate


def test_the_times_of_a_device_are_found_in_the_log_of_a_run_on_it() -> None:
    times = LinearTimes(constant_ms=30.0, prompts_ms=50.0, prompt_token_ms=0.2, kv_token_ms=0.0015)
    device = replace(worlds.device(kv_tokens=10_000, max_step_tokens=3000), times=times)
    spec = Generated(4, 2.5, 120.0, mean_prompt_tokens=130.0, mean_output_tokens=200.0)
    load = tuple(replace(r, output_tokens=min(r.output_tokens, 600)) for r in generate(spec, 0))
    records = run_policy(Setup(device, load), "slora").records
    log = [
        Served(r.first_token_s or 0, r.end_s or 0, r.prompt_tokens, r.output_tokens)
        for r in records
    ]
    found = fit_times(log)
    assert found.constant_ms == pytest.approx(30.0, rel=0.03)
    assert found.prompts_ms == pytest.approx(50.0, rel=0.15)
    assert found.prompt_token_ms == pytest.approx(0.2, rel=0.15)
    assert found.kv_token_ms == pytest.approx(0.0015, rel=0.25)
