"""Order of arrival, with adapters that were loaded for requests that wait."""

from types import SimpleNamespace

from tests.engine import build
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.adapters.residency import Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.admission import Blocked, FirstComeFirstServed
from loraplex.engine.scheduler import Scheduler

X = AdapterKey("t", "x")


def waiting_policy(*names: str) -> FirstComeFirstServed:
    policy = FirstComeFirstServed()
    for name in names:
        policy.add(SimpleNamespace(key=name), 0.0)
    return policy


def offered(policy: FirstComeFirstServed, blocked_by: Blocked, kept: set[str]) -> list[str]:
    """Who is offered, if each is blocked so."""
    names = []
    for request in policy.candidates(0.0, SimpleNamespace(kept=kept)):
        names.append(request.key)
        policy.blocked(request, blocked_by)
    return names


def test_behind_one_that_waits_for_memory_those_go_on_that_keep_some() -> None:
    policy = waiting_policy("preempted", "plain", "keeps", "last")
    assert offered(policy, Blocked.ADAPTER_MEMORY, {"keeps"}) == ["preempted", "keeps"]
    assert offered(policy, Blocked.KV_BLOCKS, {"keeps"}) == ["preempted", "keeps"]
    assert offered(policy, Blocked.KV_BLOCKS, set()) == ["preempted"]
    assert offered(policy, Blocked.LOADING, set()) == ["preempted", "plain", "keeps", "last"]


def run(scheduler: Scheduler, runner: SimulatedRunner, residency: Residency) -> tuple[str, ...]:
    """One step; loads end with it. Returns who computed something."""
    plan = scheduler.plan(0.0)
    scheduler.commit(plan, runner.run(plan))
    for key in plan.loads:
        residency.finish_load(key)
    scheduler.check()
    return tuple(chunk.request_id for chunk in plan.chunks)


def test_who_has_waited_for_a_load_finds_the_adapter_whatever_others_load_meanwhile() -> None:
    residency = Residency(2)
    config = build.config(num_blocks=12, max_transfer_bytes=10)
    scheduler, runner = build.scheduler(config, residency), SimulatedRunner(12, 4)
    scheduler.add(build.submit("fills", 30, max_tokens=14), 0.0)
    for _ in range(2):
        run(scheduler, runner, residency)
    scheduler.add(build.submit("waits", 20, adapter="x"), 0.0, 2)
    run(scheduler, runner, residency)
    assert not residency.can_load(1), "what is loaded for it can be pushed out"
    scheduler.add(build.submit("other", adapter="y"), 0.0, 2)
    order = [name for _ in range(30) for name in run(scheduler, runner, residency)]
    assert order.index("waits") < order.index("other")
    assert not scheduler.has_work
    assert residency.num_leases == 0


def test_one_that_was_preempted_and_lost_its_adapter_waits_for_those_that_keep_theirs() -> None:
    residency = Residency(4)
    config = build.config(num_blocks=12, max_transfer_bytes=10)
    scheduler, runner = build.scheduler(config, residency), SimulatedRunner(12, 4)
    scheduler.add(build.submit("first", 14, max_tokens=30), 0.0)
    scheduler.add(build.submit("second", 14, max_tokens=30, adapter="x"), 0.0, 4)
    while scheduler.num_running < 2:
        run(scheduler, runner, residency)
    while scheduler.num_running == 2:
        run(scheduler, runner, residency)
    residency.drop(X)
    policy, second = scheduler._waiting, scheduler._requests["second"]
    # As if it had been preempted only now: the adapters of those behind it are on their way.
    policy.remove(second)
    for name, digest in (("keeps", "y"), ("keeps too", "z")):
        scheduler.add(build.submit(name, 14, max_tokens=2, adapter=digest), 0.0, 2)
    plan = scheduler.plan(0.0)
    assert len(plan.loads) == 2
    policy.put_back(second)
    scheduler.commit(plan, runner.run(plan))
    for key in plan.loads:
        residency.finish_load(key)
    assert not residency.can_load(4)
    for _ in range(80):
        run(scheduler, runner, residency)
    assert not scheduler.has_work
