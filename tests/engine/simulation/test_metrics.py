import numpy as np
import pytest

from loraplex.engine.simulation.fluid import fluid_waits_s
from loraplex.engine.simulation.metrics import (
    LatencyTargets,
    WindowedService,
    jain_index,
    max_skips,
    max_wait_over_fair,
    measure,
)
from loraplex.engine.simulation.records import Record, Run


def record(
    tenant: str, arrival_s: float, first_s: float, end_s: float, tokens: tuple[int, int] = (10, 10)
) -> Record:
    made = Record(tenant, None, arrival_s, tokens[0], tokens[1])
    made.started_s, made.first_token_s, made.end_s = first_s - 0.1, first_s, end_s
    made.machine_ms = 100.0
    return made


def test_latency_and_throughput_are_counted_from_the_clients_side() -> None:
    run = Run([record("a", 0, 2, 11), record("b", 10, 11, 20, (30, 4))], duration_s=20.0)
    run.last_arrival_s = 10.0
    metrics = measure(run, LatencyTargets(ttft_s=1.5, tpot_s=3.0))
    assert metrics.tokens_per_s == 54 / 20
    assert metrics.p50_ttft_s == 1.5
    assert metrics.p99_tpot_s == pytest.approx(2.98)
    assert metrics.goodput_rps == 1 / 20


def test_service_is_spread_evenly_from_the_first_token_to_the_last() -> None:
    service = WindowedService([record("a", 0, 10, 30), record("b", 0, 50, 60)], 600)
    assert service.served(0, 20).tolist() == [15 / 20, 0]  # half of 10 + 2 · 10
    assert service.asked(0, 20).tolist() == [30 / 20, 30 / 20]


def test_a_tenant_differs_from_the_best_served_but_no_more_than_from_what_it_asked() -> None:
    # For 600 s a is served 60 a second, b 20; b asks for 30, a for all it gets.
    records = [record("a", t, t, t + 1, (20, 20)) for t in range(600)]
    records += [record("b", t, t, t + 1, (10, 5)) for t in range(0, 600, 1)]
    differences = WindowedService(records, 600).differences()
    assert differences.max() < 1.5  # both get what they ask for, to a request at the edges
    late = [record("a", t, t, t + 1, (20, 20)) for t in range(600)]
    late += [record("b", t, 2 * t, 2 * t + 1, (10, 5)) for t in range(600)]
    assert WindowedService(late, 600).differences()[5] == pytest.approx(10, abs=1.5)


def test_jains_index_is_one_for_equals_and_one_nth_for_one_who_has_all() -> None:
    assert jain_index(np.array([3.0, 3.0, 3.0])) == pytest.approx(1)
    assert jain_index(np.array([9.0, 0.0, 0.0])) == pytest.approx(1 / 3)
    assert jain_index(np.zeros(3)) == 1


def test_skips_count_those_who_came_later_and_started_earlier() -> None:
    records = [record("a", 0, 100, 101)]
    records += [record("b", i, i + 1, i + 2) for i in range(1, 6)]
    assert max_skips(records) == 5
    assert max_skips(records[1:]) == 0


def test_fluid_sharing_serves_tenants_evenly_and_their_own_requests_in_order() -> None:
    # a brings 4 s of work and 1 s more, b 1 s: from 0 to 2 they share, then a has all.
    waits = fluid_waits_s([(0.0, "a", 4.0), (0.0, "a", 1.0), (0.0, "b", 1.0), (1.0, "b", 1.0)])
    # b's first ends at 2, its second at 4; by then a has had 2, and ends at 6.
    assert waits == pytest.approx([0.0, 6.0, 0.0, 1.0])


def test_fluid_sharing_begins_anew_after_the_machine_was_idle() -> None:
    assert fluid_waits_s([(0.0, "a", 1.0), (10.0, "b", 1.0), (10.0, "a", 1.0)]) == [0, 0, 0]


def test_a_wait_is_compared_with_the_fair_one_and_the_longest_request() -> None:
    records = [record("a", 0, 0.1, 4), record("b", 0, 8.1, 9)]
    for each in records:
        each.machine_ms = 4000.0
    assert max_wait_over_fair(Run(records)) == pytest.approx(8 / 4)
