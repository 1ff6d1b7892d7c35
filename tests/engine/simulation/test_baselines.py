from dataclasses import replace

import pytest
from tests.engine.simulation import worlds

from loraplex.engine.simulation.experiment import Setup, run_policy
from loraplex.engine.simulation.traces import TraceRequest


def order(setup: Setup, policy: str) -> list[str]:
    """Tenants in the order in which their requests start."""
    records = run_policy(setup, policy).records
    return [r.tenant for r in sorted(records, key=lambda r: r.started_s or 0.0)]


def one_at_a_time(load: list[TraceRequest]) -> Setup:
    return Setup(worlds.device(max_running=1), tuple(load))


def test_vtc_serves_by_counters_as_computed_by_hand() -> None:
    # Requests cost 10 + 2 · 4 and 4 + 2 · 4: the first output token comes with the prompt.
    load = [TraceRequest(0, "a", 10, 5)] * 3 + [TraceRequest(0, "b", 4, 5)] * 4
    # Counters of a and b before each: 0 0, 18 0, 18 12, 18 24, 36 24, 36 36 (a came first), 54 36
    assert order(one_at_a_time(load), "vtc") == list("abbabab")


def test_vtc_lifts_a_tenant_that_comes_back_to_those_that_wait() -> None:
    # a and b have been served for long when c comes; it gets its turn, not all it has missed.
    load = [TraceRequest(0, tenant, 10, 5) for tenant in "ab" * 6]
    load += [TraceRequest(0.4, "c", 10, 5)] * 4
    starts = order(one_at_a_time(load), "vtc")
    first = starts.index("c")
    assert starts[first + 1] != "c"
    assert set(starts[first : first + 3]) == {"a", "b", "c"}


def test_sloras_queue_never_pushes_a_request_out_where_a_plain_one_does() -> None:
    load = tuple(TraceRequest(0.01 * i, "t", 40, 120) for i in range(12))
    setup = Setup(worlds.device(), load, kv_forecast=False)
    assert run_policy(setup, "fcfs").num_preempted > 0
    assert run_policy(setup, "slora").num_preempted == 0


@pytest.mark.parametrize("policy", ["slora", "vtc"])
def test_a_prompt_longer_than_a_step_is_admitted_all_the_same(policy: str) -> None:
    setup = Setup(worlds.device(), (TraceRequest(0, "t", 200, 3),))
    assert run_policy(setup, policy).records[0].output_tokens == 3


def test_dlpm_lets_a_tenant_with_credit_overtake_one_without() -> None:
    load = [TraceRequest(0, "a", 40, 20)] * 20 + [TraceRequest(0, "b", 40, 20)] * 20
    starts = order(one_at_a_time(load), "dlpm")
    assert starts[:5] == ["a"] * 5
    assert "b" in starts[:20]
    assert order(one_at_a_time(load), "fcfs")[:20] == ["a"] * 20


def test_chameleon_serves_small_requests_before_large_ones() -> None:
    load = [TraceRequest(0, "large", 60, 4)] * 60 + [TraceRequest(0, "small", 4, 4)] * 60
    setup = one_at_a_time(load)
    starts = order(setup, "chameleon")
    assert starts[2:40].count("small") > 30


def hot_and_cold(num_hot: int) -> Setup:
    """One slot for adapters; requests for one of them never pause, one wants the other."""
    hot = [TraceRequest(0.05 * i, "hot", 10, 12, "a", 8) for i in range(num_hot)]
    cold = TraceRequest(0.5, "cold", 10, 12, "b", 8)
    load = tuple(sorted([*hot, cold], key=lambda r: r.arrival_s))
    return Setup(worlds.device(), load, slots=1)


def cold_wait_s(policy: str, num_hot: int) -> float:
    records = run_policy(hot_and_cold(num_hot), policy).records
    (wait_s,) = [(r.started_s or 0.0) - r.arrival_s for r in records if r.tenant == "cold"]
    return wait_s


def test_skip_scan_starves_the_request_whose_adapter_finds_no_room() -> None:
    assert cold_wait_s("skip-scan", num_hot=60) > 2.0
    assert cold_wait_s("skip-scan", num_hot=120) > 5.0


@pytest.mark.parametrize("policy", ["fair", "fcfs", "drain"])
def test_other_policies_make_room_for_it(policy: str) -> None:
    assert cold_wait_s(policy, num_hot=120) < 4.0


def test_tenants_without_adapters_are_served_while_others_load() -> None:
    load = (TraceRequest(0, "cold", 5, 5, "a", 64), TraceRequest(0, "base", 5, 5))
    setup = Setup(replace(worlds.device(), copy_bytes_per_s=1e5), load)
    assert order(setup, "vtc") == ["base", "cold"]
