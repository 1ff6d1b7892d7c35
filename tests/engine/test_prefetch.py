"""Loads before they are needed: what they may take, and who pays."""

from dataclasses import replace
from threading import Event
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tests.engine import build
from tests.engine.fair_world import SETTINGS, World
from tests.engine.linear_costs import LinearCosts
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.core import Engine, StepReport
from loraplex.engine.events import Events
from loraplex.engine.mailbox import Mailbox
from loraplex.engine.metrics import WorkerMetrics
from loraplex.engine.plan import StepPlan
from loraplex.engine.simulation.copies import CopyLink
from loraplex.engine.transfers import Transfers

LOAD_MS = 10.0


def key(name: str, tenant: str = "a") -> AdapterKey:
    return AdapterKey(tenant, name)


def world(mode: str = "queue", **changes: object) -> World:
    """One request runs at a time; each adapter takes 2 bytes, whose load costs 20 ms."""
    values = {
        "adapter_bytes": 4,
        "costs": LinearCosts(load_ms=LOAD_MS),
        "prefetch": mode,
        "max_transfer_bytes": 4,
    }
    return World(replace(SETTINGS, max_open=1, overdraft_ms=0.0), **(values | changes))


def deficits(world: World) -> dict[str, float]:
    share = world.policy.main.share
    return {tenant: share.deficit_ms(tenant) for tenant in sorted(share.waiting)}


def test_the_adapter_of_a_request_that_waits_for_a_slot_is_loaded_meanwhile() -> None:
    for mode, state in (("none", State.ABSENT), ("queue", State.RESIDENT)):
        w = world(mode)
        w.add("a", num_output_tokens=40)
        w.step()
        w.add("a", adapter="x")
        for _ in range(30):
            w.step()
        assert w.residency.state(key("x")) is state
        w.drain()


def test_a_prefetch_costs_nobody_anything_until_its_first_user_who_pays_for_the_load() -> None:
    ended_with: dict[str, float] = {}
    for mode in ("none", "queue"):
        w = world(mode)
        w.add("a", num_output_tokens=40)
        w.add("b", num_output_tokens=40)
        w.step()
        w.add("a", adapter="x")
        before = deficits(w)
        w.step()
        assert deficits(w) == before
        assert (w.num_prefetched > 0) is (mode == "queue")
        w.drain()
        ended_with[mode] = w.auditor.service_ms["a"]
    assert ended_with["queue"] == ended_with["none"]


def test_only_the_first_of_two_users_pays_for_what_was_prefetched() -> None:
    w = world()
    w.add("a", num_output_tokens=30)
    w.step()
    w.add("a", adapter="x")
    for _ in range(25):
        w.step()
    first, second = w.add("a", adapter="x"), w.add("a", adapter="x")
    assert w.residency.is_unclaimed(key("x"))
    view = w.scheduler._outlook
    requests = w.scheduler._requests
    assert view.load_ms(requests[first]) == 2 * LOAD_MS
    w.residency.acquire(key("x"))
    w.residency.counts.count_route("prefetch")  # as of a choice that began
    assert view.load_ms(requests[second]) == 0.0
    w.residency.release(key("x"))
    w.drain()


def test_a_prefetch_gives_way_to_a_load_that_needs_its_memory() -> None:
    w = world(adapter_bytes=2)
    w.add("a", num_output_tokens=10)
    w.step()
    waits = w.add("a", adapter="x")
    w.step()
    assert w.residency.is_unclaimed(key("x"))
    w.abort(waits)
    w.add("b", adapter="y")
    w.drain()
    assert w.residency.state(key("x")) is State.ABSENT
    assert w.residency.prefetched.wasted_bytes == 2


def test_what_waiting_requests_need_is_not_evicted_for_a_prefetch() -> None:
    w = world(adapter_bytes=2)
    w.add("a", adapter="x")
    w.drain()
    w.add("a", num_output_tokens=30)
    w.step()
    for name in "xxy":
        w.add("a", adapter=name)
    for _ in range(20):
        w.step()
    assert w.residency.state(key("x")) is State.RESIDENT
    w.drain()


def test_no_prefetch_starts_while_loads_use_the_budget() -> None:
    w = world(max_transfer_bytes=2, adapter_bytes=8)
    w.add("a", adapter="x")
    w.add("a", adapter="y")
    w.step()
    assert w.num_prefetched == 0
    assert w.residency.state(key("x")) is State.LOADING
    assert w.residency.state(key("y")) is State.ABSENT
    w.drain()


def test_loads_over_the_budget_wait_for_those_under_way_and_nobody_is_given_more_meanwhile() -> (
    None
):
    w = World(replace(SETTINGS, max_open=4), max_transfer_bytes=2, adapter_bytes=8)
    w.add("a", adapter="x")
    w.add("b", adapter="y")
    w.step()
    num_refills = w.policy.main.share.num_refills
    assert [w.residency.state(key(n, t)) for t, n in ("ax", "by")] == [
        State.LOADING,
        State.ABSENT,
    ]
    for _ in range(6):
        w.add("c")
    w.step()
    assert w.policy.main.share.num_refills == num_refills
    w.drain()


def test_a_prefetch_that_is_claimed_while_loads_use_the_budget_goes_on() -> None:
    w = World(
        replace(SETTINGS, max_open=6), max_transfer_bytes=4, adapter_bytes=12, prefetch="queue"
    )
    blocker = w.add("a", num_output_tokens=40, num_prompt_tokens=8)
    w.step()
    w.sizes |= {key(name): 2 for name in "vw"}
    for name in "vw":
        w.scheduler._loads.prefetch(key(name), 2, w.scheduler._draft)
    assert w.scheduler._loads.spare_bytes == 0
    w._audit_plan(StepPlan(0, prefetches=(key("v"), key("w"))))
    for name in "xyvw":
        w.add("a", adapter=name)
    w.step()
    states = [w.residency.state(key(name)) for name in "xyvw"]
    assert states == [State.LOADING] * 4
    w.abort(blocker)
    w.drain()


def test_an_evicted_adapter_that_is_asked_for_more_than_what_replaced_it_comes_back() -> None:
    w = world("all", adapter_bytes=2)
    for _ in range(6):
        w.add("a", adapter="often")
        w.drain()
    w.add("a", adapter="once")
    w.drain()
    w.add("a", num_output_tokens=40)
    for _ in range(30):
        w.step()
    assert w.residency.state(key("often")) is State.RESIDENT
    assert w.residency.is_unclaimed(key("often"))


def test_what_could_not_be_loaded_is_not_prefetched_again() -> None:
    w = world("all", adapter_bytes=2)
    for name in (*["often"] * 6, "once"):
        w.add("a", adapter=name)
        w.drain()
    w.add("a", num_output_tokens=20)
    while not w.loading:
        w.step()
    w.fail_load(key("often"))
    w.drain()
    assert w.residency.state(key("often")) is State.ABSENT


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), min_size=1, max_size=12))
def test_prefetches_make_no_load_later_on_the_link(starts: list[tuple[float, bool]]) -> None:
    arrivals = []
    for with_prefetches in (True, False):
        now, at_s = [0.0], {}
        link = CopyLink(1.0, lambda _: 1, lambda now=now: now[0])
        for number, (gap_s, is_prefetch) in enumerate(starts):
            until_s = now[0] + gap_s
            _run(link, now, until_s, at_s)
            keys = (key(f"p{number}" if is_prefetch else f"l{number}"),)
            if is_prefetch and with_prefetches:
                link.start(StepPlan(1, (), (), (), prefetches=keys))
            elif not is_prefetch:
                link.start(StepPlan(1, (), keys, ()))
        _run(link, now, 1e3, at_s)
        arrivals.append({name: at for name, at in at_s.items() if name.startswith("l")})
    assert arrivals[0] == pytest.approx(arrivals[1])


def _run(link: CopyLink, now: list[float], until_s: float, at_s: dict[str, float]) -> None:
    while link.next_arrival_s <= until_s:
        now[0] = max(now[0], link.next_arrival_s)
        at_s |= {arrival.key.digest: now[0] for arrival in link.arrivals()}
    now[0] = until_s


def test_metrics_tell_what_became_of_prefetches() -> None:
    w = world(adapter_bytes=2)
    metrics = WorkerMetrics(CollectorRegistry(), w.scheduler, w.residency)
    w.add("a", num_output_tokens=30)
    w.step()
    w.add("a", adapter="x")
    w.drain()
    w.add("a", num_output_tokens=10)
    w.step()
    waits = w.add("a", adapter="y")
    w.step()
    w.abort(waits)
    w.add("b", adapter="z")
    w.drain()
    metrics.observe(StepReport(StepPlan(1), Events()))
    text = metrics.render()
    for state, count in (("started", 3), ("claimed", 2), ("wasted", 1)):
        assert f'loraplex_adapter_prefetches_total{{state="{state}"}} {count}.0' in text
    assert "loraplex_adapter_prefetch_wasted_bytes_total 2.0" in text


def test_a_large_adapter_is_not_given_up_for_a_small_one_that_as_many_wait_for() -> None:
    w = world(adapter_bytes=4)
    w.add("a", adapter="large", num_bytes=4)
    w.drain()
    w.add("a", num_output_tokens=30)
    w.step()
    w.add("a", adapter="large", num_bytes=4)
    w.add("a", adapter="small", num_bytes=1)
    for _ in range(20):
        w.step()
    assert w.residency.state(key("large")) is State.RESIDENT
    w.drain()


def test_the_engine_prefetches_on_its_thread_and_gives_the_adapter_to_who_waited() -> None:
    woken, mailbox, residency = Event(), Mailbox(), Residency(10)
    config = build.config(max_running=1, prefetch="queue", max_transfer_bytes=10)
    transfers = Transfers(build.Source(lambda digest: SimpleNamespace(digest=digest)), woken.set)
    scheduler = build.scheduler(config, residency)
    runner = SimulatedRunner(config.num_blocks, config.block_size)
    engine = Engine(mailbox, scheduler, residency, transfers, runner, build.sizes, lambda: 0.0)
    mailbox.put(build.submit("r1", max_tokens=20))
    mailbox.put(build.submit("r2", adapter="x"))
    assert engine.step().plan.prefetches == (key("x", "t"),)
    assert woken.wait(10)
    engine.step()
    assert residency.is_unclaimed(key("x", "t"))
    while scheduler.has_work:
        plan = engine.step().plan
        assert plan.loads == ()
    assert residency.prefetched.num_claimed == 1
    transfers.close()
