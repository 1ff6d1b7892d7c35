from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from loraplex.engine.simulation.errors import SimulationError
from loraplex.engine.simulation.workload import (
    AdapterMix,
    Generated,
    bursting_tenant,
    generate,
    scaled,
    with_adapters,
    with_burst,
    with_cancellations,
)

SPEC = Generated(num_tenants=10, rate_per_s=10.0, duration_s=600.0)


def test_generated_requests_have_the_rate_and_the_skew_that_were_asked_for() -> None:
    requests = generate(SPEC, seed=0)
    assert len(requests) == pytest.approx(6000, rel=0.1)
    counts = Counter(request.tenant for request in requests)
    assert counts["t0"] / counts["t9"] == pytest.approx(10, rel=0.4)
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(requests))


def test_a_seed_makes_the_same_requests_and_another_others() -> None:
    assert generate(SPEC, 0) == generate(SPEC, 0)
    assert generate(SPEC, 0) != generate(SPEC, 1)


def test_bursty_tenants_have_gaps_of_the_variation_that_was_asked_for() -> None:
    spec = replace(SPEC, num_tenants=1, burstiness_cv=4.0, duration_s=3000.0)
    gaps = np.diff([request.arrival_s for request in generate(spec, 0)])
    assert gaps.std() / gaps.mean() == pytest.approx(4.0, rel=0.25)


def test_tenants_that_are_off_most_of_the_time_send_as_much_in_fewer_minutes() -> None:
    spec = replace(SPEC, num_tenants=1, active_share=0.25, duration_s=6000.0)
    requests = generate(spec, 0)
    minutes = {int(request.arrival_s / 60) for request in requests}
    assert len(minutes) < 50
    assert len(requests) == pytest.approx(60_000, rel=0.3)


def test_adapters_belong_to_their_tenant_and_have_one_rank_each() -> None:
    requests = with_adapters(generate(SPEC, 0), AdapterMix(4, zipf=1.4, ranks=(8, 64)), seed=0)
    ranks = {(request.adapter, request.rank) for request in requests}
    assert len({adapter for adapter, _ in ranks}) == len(ranks) == 40
    assert {rank for _, rank in ranks} == {8, 64}
    assert all(str(request.adapter).startswith(f"{request.tenant}/") for request in requests)


def test_one_tenant_bursts_and_the_others_do_as_before() -> None:
    requests = generate(SPEC, 0)
    burst, burster = with_burst(requests, 10, seed=0), bursting_tenant(requests)
    before, after = (Counter(r.tenant for r in each) for each in (requests, burst))
    assert after[burster] == 10 * before[burster]
    assert len({r.arrival_s for r in burst if r.tenant == burster}) == after[burster]
    assert {t: n for t, n in after.items() if t != burster} == {
        t: n for t, n in before.items() if t != burster
    }


def test_a_share_of_clients_leaves_within_half_a_minute() -> None:
    left = [r.cancelled_after_s for r in with_cancellations(generate(SPEC, 0), 0.05, seed=0)]
    times = [at for at in left if at is not None]
    assert len(times) / len(left) == pytest.approx(0.05, rel=0.3)
    assert all(0 <= at <= 30 for at in times)


def test_a_load_that_is_cut_before_its_first_request_is_refused() -> None:
    with pytest.raises(SimulationError, match="within the first 0 s"):
        scaled(generate(SPEC, 0), 1.0, until_s=0.0)
