"""Whom fair admission takes first, in single situations."""

from dataclasses import replace

import pytest
from tests.engine import build
from tests.engine.fair_world import SETTINGS, World
from tests.engine.linear_costs import LinearCosts

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import StepPlan
from loraplex.engine.tenant_weights import MAX_TENANTS, TenantWeights


def begun(plan: StepPlan) -> list[str]:
    """Requests that computed their first token."""
    return sorted(chunk.request_id for chunk in plan.chunks if chunk.start == 0)


def step(world: World) -> StepPlan:
    """The next step that computes something."""
    num_plans = len(world.runner.plans)
    while len(world.runner.plans) == num_plans:
        world.step()
    return world.runner.plans[-1]


def order(world: World) -> list[str]:
    """All requests in the order in which they begin."""
    requests: list[str] = []
    while world.scheduler.has_work:
        requests += [r for r in begun(step(world)) if r not in requests]
    return requests


def test_tenants_take_turns_however_many_requests_one_has() -> None:
    world = World(replace(SETTINGS, max_open=1, quantum_ms=5.0))
    for _ in range(6):
        world.add("a")
    late = [world.add("b") for _ in range(2)]
    assert set(late) <= set(order(world)[:5])


def test_a_tenant_of_three_times_the_weight_gets_three_times_the_service() -> None:
    world = World(replace(SETTINGS, max_open=1, quantum_ms=5.0))
    for _ in range(60):
        world.add("a", weight=1.0)
        world.add("b", weight=3.0)
    for _ in range(80):
        world.step()
    service = world.auditor.service_ms
    assert service["b"] / service["a"] == pytest.approx(3, rel=0.2)


def test_the_newest_weight_holds_whichever_gateways_request_comes_last() -> None:
    world = World(replace(SETTINGS, max_open=1, quantum_ms=5.0))
    world.add("b", weight=1.0, weight_version=1)
    for _ in range(60):
        world.add("a", weight=1.0, weight_version=7)
        world.add("b", weight=3.0, weight_version=2)
        world.add("b", weight=1.0, weight_version=1)
    for _ in range(80):
        world.step()
    service = world.auditor.service_ms
    assert service["b"] / service["a"] == pytest.approx(3, rel=0.2)


def test_of_weights_of_one_version_the_last_holds_and_tenants_are_forgotten_in_turn() -> None:
    weights = TenantWeights()
    told = [build.submit("r", tenant="a", weight=w, weight_version=v) for w, v in ((2, 1), (3, 1))]
    for submit in told:
        weights.tell(submit)
    assert weights.of(told[0]) == 3
    for number in range(MAX_TENANTS):
        weights.tell(build.submit("r", tenant=f"t{number}"))
    assert weights.of(told[0]) == 2


def test_priority_goes_before_the_tenants_others_and_not_before_other_tenants() -> None:
    world = World(replace(SETTINGS, max_open=1, quantum_ms=5.0))
    a = [world.add("a"), world.add("a"), world.add("a", service_tier="priority")]
    b = [world.add("b")]
    requests = order(world)
    assert [r for r in requests if r in a] == [a[2], a[0], a[1]]
    assert requests.index(b[0]) <= 1


def test_the_program_that_has_had_least_goes_first() -> None:
    world = World(replace(SETTINGS, max_open=1))
    world.add("a", num_prompt_tokens=20, program="long")
    step(world)
    again = world.add("a", program="long")
    fresh = world.add("a", program="fresh")
    assert order(world)[-2:] == [fresh, again]


def test_a_program_has_what_its_running_requests_are_expected_to_use() -> None:
    world = World(replace(SETTINGS, max_open=1))
    wide = [world.add("a", num_prompt_tokens=20, program="wide") for _ in range(3)]
    fresh = world.add("a", program="fresh")
    assert order(world) == [wide[0], fresh, *wide[1:]]


def test_a_resident_adapter_goes_first_within_a_tenant_and_the_cold_one_is_not_forgotten() -> None:
    world = World(replace(SETTINGS, max_open=1, max_skips=2), adapter_bytes=2)
    world.add("a", adapter="warm")
    world.drain()
    cold = world.add("a", adapter="cold")
    warm = [world.add("a", adapter="warm") for _ in range(4)]
    assert order(world) == [*warm[:2], cold, *warm[2:]]


def test_who_needs_a_load_is_charged_when_it_starts_and_runs_first_when_it_has_ended() -> None:
    world = World(replace(SETTINGS, max_open=3), costs=LinearCosts(load_ms=2.0))
    world.add("z", num_output_tokens=30)
    cold = world.add("a", adapter="x")
    world.step()
    assert list(world.policy.main._committed) == [cold]
    assert world.policy.main.share.deficit_ms("a") < SETTINGS.quantum_ms
    others = [world.add("a"), world.add("b"), world.add("b")]
    world.loading[AdapterKey("a", "x")] = world.now + 0.002
    first = begun(step(world))
    assert cold not in first
    assert len(first) == 1, "a slot is kept for the one that was charged"
    requests = order(world)
    assert requests.index(cold) < requests.index(others[-1])


def test_an_abort_gives_back_what_was_charged_but_not_the_load() -> None:
    world = World(costs=LinearCosts(load_ms=2.0))
    cold = world.add("a", num_prompt_tokens=10, adapter="x")
    world.add("a")
    world.step()
    before = world.policy.main.share.deficit_ms("a")
    world.abort(cold)
    after = world.policy.main.share.deficit_ms("a")
    assert after - before == pytest.approx(10 + 1), "prompt and the second token"


def test_who_is_next_and_lacks_memory_is_overtaken_only_by_what_ends_before_it() -> None:
    world = World(replace(SETTINGS, max_open=4, quantum_ms=100.0), num_blocks=12)
    world.add("a", num_prompt_tokens=8, num_output_tokens=20)
    step(world)
    step(world)
    big = world.add("b", num_prompt_tokens=44, num_output_tokens=2)
    step(world)
    assert world.policy.main.reserved is not None
    short = world.add("c", num_prompt_tokens=4, num_output_tokens=2)
    long = world.add("d", num_prompt_tokens=4, num_output_tokens=30)
    assert begun(step(world)) == [short]
    assert order(world)[:1] == [big]
    assert world.num_ended == 4
    assert long


def test_a_reservation_is_overtaken_a_bounded_number_of_times() -> None:
    world = World(replace(SETTINGS, max_skips=2, quantum_ms=100.0), num_blocks=12)
    world.add("a", num_prompt_tokens=8, num_output_tokens=30)
    step(world)
    world.add("b", num_prompt_tokens=44, num_output_tokens=2)
    small = [world.add(f"t{i}", num_prompt_tokens=2, num_output_tokens=1) for i in range(5)]
    requests = order(world)
    assert len([r for r in requests[: requests.index("r00002")] if r in small]) <= 2


def test_flex_runs_only_when_nobody_else_could() -> None:
    world = World(replace(SETTINGS, max_open=2))
    flex = [world.add("a", num_output_tokens=12, service_tier="flex") for _ in range(2)]
    assert begun(step(world)) == flex
    main = [world.add("b", num_output_tokens=2) for _ in range(2)]
    plan = step(world)
    assert begun(plan) == main
    assert {p.request_id for p in plan.preempted} == set(flex)
    world.drain()
    assert world.num_ended == 4


def test_flex_changes_nothing_for_others() -> None:
    plans = []
    for with_flex in (False, True):
        world = World(num_blocks=16, prefix_cache=False)  # which all tiers share
        chunks = []
        for i in range(120):
            if i % 3 == 0:
                tenant, length = "ab"[i % 2], 1 + i % 7
                world.num_added = 2 * i
                world.add(tenant, 1 + 5 * i % 23, length, "x" if i % 2 else None)
            if with_flex:
                world.num_added = 1000 + i
                world.add("c", 9, 9, service_tier="flex")
            world.step()
            main = [c for c in world.runner.plans[-1].chunks if int(c.request_id[1:]) < 1000]
            chunks += [(c.request_id, c.start, len(c.token_ids)) for c in main]
        plans.append(list(dict.fromkeys(chunks)))
    assert plans[0][:100] == plans[1][:100]


def test_the_cost_of_pushing_out_is_paid_by_who_pushes_up_to_a_cap() -> None:
    for overdraft_ms, pushes in ((100.0, True), (0.0, False)):
        settings = replace(SETTINGS, max_open=2, overdraft_ms=overdraft_ms)
        world = World(settings, num_blocks=12, max_step_tokens=48, costs=LinearCosts(load_ms=0.0))
        a = world.add("a", num_prompt_tokens=12, num_output_tokens=8)
        b = world.add("b", num_prompt_tokens=36, num_output_tokens=8)
        step(world)
        before = world.policy.main.share.deficit_ms("a")
        (preempted,) = step(world).preempted
        assert preempted.by == a
        assert preempted.request_id == (b if pushes else a)
        after = world.policy.main.share.deficit_ms("a")
        assert (before - after == 36.0) is pushes
        world.drain()


def test_who_is_pushed_out_by_another_tenant_runs_on_before_all_who_wait() -> None:
    settings = replace(SETTINGS, max_open=3, overdraft_ms=100.0)
    config = {"num_blocks": 12, "max_step_tokens": 48, "prefix_cache": False}
    world = World(settings, costs=LinearCosts(load_ms=0.0), **config)
    world.add("a", num_prompt_tokens=12, num_output_tokens=8)
    b = world.add("b", num_prompt_tokens=36, num_output_tokens=8)
    step(world)
    assert [pushed.request_id for pushed in step(world).preempted] == [b]
    assert world.policy.main.share.num_open == 2, "its charge was closed"
    world.lengths.num_tokens = 28.0  # too long to fill the gap
    for tenant in "abc":
        world.add(tenant, num_prompt_tokens=20, num_output_tokens=28)
    assert order(world)[0] == b
    world.drain()


def test_a_load_of_one_tenant_holds_up_no_other() -> None:
    world = World(costs=LinearCosts(load_ms=50.0))
    world.add("z", num_output_tokens=30)
    world.add("a", adapter="x")
    world.step()
    assert AdapterKey("a", "x") in world.loading
    other = world.add("b")
    assert begun(step(world)) == [other]


def test_who_fits_into_the_time_of_a_copy_does_not_wait_for_memory_that_the_copy_fills() -> None:
    settings = replace(SETTINGS, max_drain_ms=0.0)
    world = World(settings, adapter_bytes=2, costs=LinearCosts(load_ms=1e4))
    world.scheduler.routes.copy_bytes_per_s = 1.0
    world.add("z", num_output_tokens=6)
    step(world)
    world.add("a", adapter="x")
    step(world)
    world.add("b", adapter="y")
    step(world)
    other = world.add("c", num_output_tokens=12)
    assert begun(step(world)) == [other]


def test_those_who_waited_for_one_load_are_all_found_when_it_has_ended() -> None:
    world = World()
    for _ in range(3):
        world.add("f", adapter="x")
    world.drain(max_steps=30)
    assert world.num_ended == 3
