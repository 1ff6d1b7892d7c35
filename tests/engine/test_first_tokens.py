"""Requests that would rather be refused than be late."""

import threading
from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tests.engine.deadline_world import World

from loraplex.engine.admission import AdmissionPolicy, FirstComeFirstServed
from loraplex.engine.core import StepReport
from loraplex.engine.cost import CostModel, Subject
from loraplex.engine.cost_features import StepFeatures
from loraplex.engine.errors import DeadlineUnreachable
from loraplex.engine.fair_admission import FairAdmission
from loraplex.engine.fair_settings import FairSettings
from loraplex.engine.mailbox import Mailbox
from loraplex.engine.metrics import WorkerMetrics
from loraplex.engine.protocol import RejectionCode, Sampling
from loraplex.engine.request import Request

FAIR = FairSettings(quantum_ms=10.0, overdraft_ms=20.0, max_skips=4, max_open=8)


def first_token_ms(world: World, request_id: str) -> float:
    """When the first token of a request that runs now comes, from now on."""
    begun = world.now
    while not any(tokens.request_id == request_id for tokens in world.step().tokens):
        pass
    return (world.now - begun) * 1e3


def test_a_deadline_that_can_be_met_is_met() -> None:
    world = World()
    world.add("a", deadline_ms=4.0)
    assert first_token_ms(world, "a") == pytest.approx(3.0)


def test_a_prompt_that_takes_longer_than_its_deadline_is_refused_for_good() -> None:
    world = World()
    with pytest.raises(DeadlineUnreachable, match="even if nothing else ran") as refused:
        world.add("a", deadline_ms=1.0)
    assert refused.value.retry_after_s is None
    assert not world.scheduler.has_work


def test_a_prompt_that_takes_a_little_longer_than_its_deadline_may_come_again() -> None:
    world = World()
    with pytest.raises(DeadlineUnreachable, match="its deadline is in 2 ms") as refused:
        world.add("a", deadline_ms=2.0)
    assert refused.value.retry_after_s == pytest.approx(0.001)


def test_an_idle_engine_runs_one_in_eight_of_those_that_it_predicts_to_be_late() -> None:
    world, runs = World(), []
    for i in range(17):
        world.add("busy")
        with pytest.raises(DeadlineUnreachable):
            world.add(f"b{i}", deadline_ms=1.0)
        world.run()
        try:
            world.add(f"r{i}", deadline_ms=1.0)
        except DeadlineUnreachable:
            continue
        runs.append(i)
        with pytest.raises(DeadlineUnreachable):
            world.add(f"other{i}", deadline_ms=1.0)
        world.now += 1.0
        world.run()
    assert runs == [7, 15]
    assert not world.events.rejected


def test_a_model_that_is_too_slow_for_all_deadlines_is_corrected_by_those_that_it_lets_run() -> (
    None
):
    costs, rng = CostModel(Subject("model", "device")), np.random.default_rng(0)
    for _ in range(1000):
        num_decodes, num_tokens = int(rng.integers(0, 8)), int(rng.integers(0, 60))
        step = StepFeatures(num_decodes, num_decodes, 0, 0.0, 0.0, 20 * num_decodes)
        step = step.with_chunk(num_tokens, 0) if num_tokens else step
        costs.observe(step, 6.0 * step.num_tokens * rng.normal(1.0, 0.02))
    world, num_refused = World(costs=costs), 0
    for i in range(200):
        try:
            world.add(f"r{i}", deadline_ms=30.0, num_prompt_tokens=20, max_tokens=8)
        except DeadlineUnreachable:
            num_refused += 1
        world.run()
    assert num_refused < 60


def test_time_that_its_gateway_took_is_no_reason_to_refuse_it_for_good() -> None:
    world = World()
    with pytest.raises(DeadlineUnreachable, match="its deadline is in 1 ms") as refused:
        world.add("a", deadline_ms=1.0, ttft_spent_ms=0.5)
    assert refused.value.retry_after_s == pytest.approx(0.002)
    with pytest.raises(DeadlineUnreachable, match="its deadline is after 1 ms") as refused:
        world.add("b", deadline_ms=0.4, ttft_spent_ms=1.0)
    assert refused.value.retry_after_s is None


def test_a_prompt_that_another_computes_now_is_no_reason_to_refuse_it_for_good() -> None:
    world = World()
    prompt = tuple(range(40))
    world.add("first", prompt=prompt)
    world.step()
    with pytest.raises(DeadlineUnreachable) as refused:
        world.add("a", deadline_ms=10.0, prompt=(*prompt, 900))
    assert refused.value.retry_after_s is not None
    with pytest.raises(DeadlineUnreachable, match="even if nothing else ran"):
        world.add("b", deadline_ms=10.0, prompt=(900, *prompt))
    with pytest.raises(DeadlineUnreachable, match="even if nothing else ran"):
        world.add("c", deadline_ms=10.0, prompt=(*prompt, 900), tenant="other")


@pytest.mark.parametrize("policy", [FirstComeFirstServed, lambda: FairAdmission(FAIR)])
def test_one_behind_others_is_refused_by_what_they_take_and_told_when_to_come_back(
    policy: type[AdmissionPolicy],
) -> None:
    world = World(policy(), max_running=1)
    for i in range(3):
        world.add(f"r{i}", num_prompt_tokens=10, max_tokens=20)
    with pytest.raises(DeadlineUnreachable) as refused:
        world.add("late", deadline_ms=50.0)
    assert refused.value.retry_after_s == pytest.approx((3 * 29 + 3 - 50) / 1e3, abs=0.012)
    world.add("patient", deadline_ms=120.0)
    world.add("indifferent")
    assert first_token_ms(world, "patient") < 120.0


def test_others_that_fit_beside_it_cost_it_their_prompts_only() -> None:
    world = World()
    for i in range(3):
        world.add(f"r{i}", num_prompt_tokens=4, max_tokens=10)
    with pytest.raises(DeadlineUnreachable):
        world.add("late", deadline_ms=14.0)
    world.add("in time", deadline_ms=17.0)
    assert first_token_ms(world, "in time") <= 17.0


def test_a_tenant_is_not_refused_for_what_another_has_sent_beyond_its_share() -> None:
    world = World(FairAdmission(FAIR), max_running=1)
    world.add("running", tenant="loud", num_prompt_tokens=3, max_tokens=5)
    world.step()
    for i in range(20):
        world.add(f"loud{i}", tenant="loud", num_prompt_tokens=3, max_tokens=10)
    with pytest.raises(DeadlineUnreachable):
        world.add("loud", deadline_ms=60.0, tenant="loud")
    world.add("quiet", deadline_ms=60.0, tenant="quiet")
    assert first_token_ms(world, "quiet") < 60.0


def test_priority_does_not_wait_for_its_tenants_other_requests() -> None:
    world = World(FairAdmission(FAIR), max_running=1)
    world.add("running", max_tokens=5)
    world.step()
    for i in range(5):
        world.add(f"r{i}", num_prompt_tokens=3, max_tokens=10)
    world.add("urgent", deadline_ms=30.0, service_tier="priority")
    assert first_token_ms(world, "urgent") < 30.0


def test_flex_waits_for_everybody() -> None:
    world = World(FairAdmission(FAIR), max_running=1)
    for i in range(5):
        world.add(f"r{i}", tenant=f"t{i}", num_prompt_tokens=3, max_tokens=10)
    with pytest.raises(DeadlineUnreachable):
        world.add("flex", deadline_ms=40.0, service_tier="flex")


def test_what_loads_took_of_late_counts_for_one_that_needs_a_load() -> None:
    world = World()
    world.add("a", adapter="x", deadline_ms=1000.0)
    plan = world.scheduler.plan(world.now)
    world.now += 0.5
    for key in plan.loads:
        world.residency.finish_load(key)
    assert first_token_ms(world, "a") == pytest.approx(3.0)
    with pytest.raises(DeadlineUnreachable):
        world.add("b", adapter="y", deadline_ms=90.0)
    world.add("c", adapter="x", deadline_ms=90.0)


@pytest.mark.parametrize("policy", [FirstComeFirstServed, lambda: FairAdmission(FAIR)])
def test_prompts_before_it_count_as_far_as_they_are_not_cached(
    policy: type[AdmissionPolicy],
) -> None:
    world = World(policy())
    prompt = tuple(range(20))
    world.add("known", prompt=prompt, max_tokens=1)
    world.run()
    for i in range(3):
        world.add(f"r{i}", prompt=(*prompt, 900 + i), max_tokens=2)
    world.add("a", deadline_ms=20.0)
    assert first_token_ms(world, "a") <= 20.0


@pytest.mark.parametrize("policy", [FirstComeFirstServed, lambda: FairAdmission(FAIR)])
def test_the_choices_before_it_compute_their_prompt_once(policy: type[AdmissionPolicy]) -> None:
    world = World(policy())
    sampling = Sampling(max_tokens=2, temperature=0.0, seed=0, n=4)
    world.add("choices", num_prompt_tokens=22, sampling=sampling)
    world.add("a", deadline_ms=40.0)
    assert first_token_ms(world, "a") <= 40.0


class CountingPolicy(FairAdmission):
    """Counts who is asked about, and how often."""

    def __init__(self, max_open: int) -> None:
        super().__init__(FairSettings(10.0, 20.0, max_skips=4, max_open=max_open))
        self.num_asked = 0
        self.looked_at: list[tuple[Request, float]] = []

    def ahead(
        self, request: Request, cost_ms: Callable[[Request], float]
    ) -> Iterator[tuple[Request, float]]:
        self.num_asked += 1
        self.looked_at = list(super().ahead(request, cost_ms))
        return iter(self.looked_at)


@pytest.mark.parametrize("tier", ["default", "priority", "flex"])
@pytest.mark.parametrize("num_tenants", [1, 3, 400])
def test_however_many_wait_few_are_looked_at_who_stand_for_all(num_tenants: int, tier: str) -> None:
    policy = CountingPolicy(8)
    world = World(policy, max_waiting_requests=10_000, max_waiting_tokens=10**6)
    for i in range(2000):
        tenant = f"t{i % num_tenants}"
        own_tier = "priority" if i % 2 else "default"
        world.add(f"r{i}", num_prompt_tokens=3, tenant=tenant, service_tier=own_tier)
    world.add("a", deadline_ms=3.6e6, tenant="t0", service_tier=tier)
    assert len(policy.looked_at) <= 32 + 32 * 4
    num_ahead = sum(count for _, count in policy.looked_at)
    num_own = 2000 // num_tenants
    if tier == "flex":
        assert num_ahead == pytest.approx(2000)
    elif num_tenants == 1:
        assert num_ahead == pytest.approx(2000 if tier == "default" else 1000)
    else:
        assert num_own / 2 <= num_ahead <= 2000 + num_own


def test_many_that_are_late_at_once_are_told_by_one_prediction() -> None:
    policy = CountingPolicy(8)
    world = World(policy, max_running=1, max_waiting_requests=1000)
    world.add("long", max_tokens=4)
    for i in range(100):
        world.add(f"r{i}", deadline_ms=2000.0)
    asked_before, world.now = policy.num_asked, 10.0
    assert len(world.step().rejected) == 100
    assert policy.num_asked == asked_before + 1


def test_one_that_waits_is_refused_once_it_would_be_late_for_certain() -> None:
    world = World(max_running=1)
    world.add("long", num_prompt_tokens=3, max_tokens=4)
    world.add("waits", deadline_ms=10.0)
    world.now += 0.0065  # the machine stood still
    world.step()
    assert world.events.rejected == []
    world.now += 0.001
    (rejected,) = world.step().rejected
    assert (rejected.request_id, rejected.code) == ("waits", "late")
    assert rejected.retry_after_s is not None
    world.run()
    assert [e.request_id for e in world.events.finished] == ["long"]


def test_refusals_are_counted_by_reason() -> None:
    world, registry = World(max_running=1), CollectorRegistry()
    metrics = WorkerMetrics(registry, world.scheduler, world.residency)
    world.add("long", max_tokens=4)
    world.add("waits", deadline_ms=10.0)
    world.now = 1.0
    plan = world.scheduler.plan(world.now)
    metrics.observe(StepReport(plan, world.scheduler.take_events()))
    counts = {
        code: registry.get_sample_value("loraplex_worker_refusals_total", {"code": code})
        for code in get_args(RejectionCode)
    }
    assert counts == dict.fromkeys(get_args(RejectionCode), 0) | {"late": 1}


def test_one_that_has_started_goes_on_however_late_it_is() -> None:
    world = World()
    world.add("a", deadline_ms=20.0, num_prompt_tokens=18)
    world.step()
    world.now += 10.0
    world.run()
    assert not world.events.rejected
    assert [e.request_id for e in world.events.finished] == ["a"]


def test_before_step_times_are_known_only_a_deadline_that_has_passed_is_missed() -> None:
    world = World(max_running=1)
    world.costs.num_steps = 0
    for i in range(5):
        world.add(f"r{i}", num_prompt_tokens=30, max_tokens=10)
    world.add("a", deadline_ms=40.0)
    world.step()
    world.now = 0.04
    world.step()
    assert not world.events.rejected
    world.now = 0.041
    assert [e.request_id for e in world.step().rejected] == ["a"]


def test_an_idle_engine_wakes_when_a_deadline_may_pass() -> None:
    world = World()
    assert world.scheduler.first_tokens.next_s is None
    world.add("a", deadline_ms=10.0, adapter="x")
    world.scheduler.plan(0.0)  # its load has begun, and takes for ever
    assert world.scheduler.first_tokens.next_s == pytest.approx(0.007)
    world.now = 0.008
    assert world.scheduler.plan(world.now).num_requests == 0
    assert [e.request_id for e in world.scheduler.take_events().rejected] == ["a"]
    assert world.scheduler.first_tokens.next_s is None


def test_a_mailbox_is_waited_for_no_longer_than_it_is_said() -> None:
    woken = threading.Event()
    mailbox = Mailbox()
    thread = threading.Thread(target=lambda: (mailbox.wait(0.01), woken.set()))
    thread.start()
    assert woken.wait(30)
    thread.join()


def test_deadlines_of_requests_that_have_ended_are_forgotten() -> None:
    world = World()
    for i in range(1000):
        world.add(f"r{i}", deadline_ms=1e6, max_tokens=1)
        world.step()
    assert len(world.scheduler.first_tokens._latest_starts) < 200


arrivals = st.tuples(
    st.sampled_from(["default", "priority", "flex"]),
    st.sampled_from("xyz"),
    st.sampled_from([None, "p", "q"]),
    st.integers(1, 20),
    st.integers(1, 12),
    st.one_of(st.none(), st.floats(0.5, 200)),
    st.integers(0, 3),
)


@settings(deadline=None)
@given(
    st.lists(arrivals, max_size=40),
    st.sampled_from([FirstComeFirstServed, lambda: FairAdmission(FAIR)]),
    st.integers(1, 4),
)
def test_only_who_has_a_deadline_is_refused_for_one_and_before_anything_of_it_ran(
    requests: list[tuple], policy: type[AdmissionPolicy], max_running: int
) -> None:
    world = World(policy(), max_running=max_running, max_waiting_requests=1000)
    deadlines, refused = {}, set()
    for i, (tier, tenant, adapter, prompt, output, deadline_ms, num_steps) in enumerate(requests):
        deadlines[f"r{i}"] = deadline_ms
        try:
            world.add(
                f"r{i}",
                deadline_ms,
                num_prompt_tokens=prompt,
                max_tokens=output,
                tenant=tenant,
                adapter=adapter,
                service_tier=tier,
            )
        except DeadlineUnreachable:
            refused.add(f"r{i}")
        for _ in range(num_steps):
            world.step()
    world.run()
    late = {rejected.request_id for rejected in world.events.rejected}
    ended = {finished.request_id for finished in world.events.finished}
    assert late | refused | ended == deadlines.keys()
    assert all(deadlines[request_id] is not None for request_id in late | refused)
    assert not late & {tokens.request_id for tokens in world.events.tokens}
    assert not late & ended
