"""Clients leave at any moment of their requests, and nothing stays behind."""

from dataclasses import replace

import pytest
from tests.engine.simulation import worlds

from loraplex.engine.simulation.devices import LinearTimes
from loraplex.engine.simulation.experiment import POLICIES, run_policy
from loraplex.engine.simulation.workload import (
    AdapterMix,
    Generated,
    generate,
    with_adapters,
    with_cancellations,
)

SPEC = Generated(20, 25.0, 10.0, mean_prompt_tokens=30.0, mean_output_tokens=20.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_in_which_every_client_leaves_ends_with_nothing_held(policy: str) -> None:
    fitting = (r for r in generate(SPEC, 0) if r.prompt_tokens + r.output_tokens < 200)
    requests = with_adapters(tuple(fitting), AdapterMix(3), 0)
    setup = worlds.setup(with_cancellations(requests, 1.0, 0), slots=4, max_tokens=200)
    setup = replace(setup, device=replace(setup.device, times=LinearTimes(20.0, 20.0, 1.0, 0.001)))
    # The run itself checks at its end that no block, lease or charge is held.
    run = run_policy(setup, policy)
    assert all(record.end_s is not None for record in run.records)
    assert sum(record.cancelled for record in run.records) > 20
