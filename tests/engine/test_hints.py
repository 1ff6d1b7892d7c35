"""What tenants say that they will use is brought to the device, and never at others' cost."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from prometheus_client import CollectorRegistry
from tests.contracts.scripted_worker import ScriptedWorker
from tests.engine import build
from tests.engine.fair_world import SETTINGS, World
from tests.engine.linear_costs import LinearCosts
from tests.engine.simulated_worker import SimulatedWorker, running, socket_path
from tests.engine.test_stream import collect, connected
from tests.platform.tiny_model import model_info

from loraplex.adapters.residency import State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.core import StepReport
from loraplex.engine.draft import Draft
from loraplex.engine.events import Events
from loraplex.engine.frames import UnixAddress
from loraplex.engine.hints import MAX_OF_TENANT
from loraplex.engine.hints_sent import HintsSent
from loraplex.engine.metrics import WorkerMetrics
from loraplex.engine.plan import StepPlan
from loraplex.engine.residency_protocol import Warm


def key(name: str, tenant: str = "a") -> AdapterKey:
    return AdapterKey(tenant, name)


def world(mode: str = "none", **changes: object) -> World:
    """Each adapter takes 2 bytes; hints may bring 8 of them, and those of one tenant 4."""
    values = {
        "adapter_bytes": 64,
        "costs": LinearCosts(load_ms=1.0),
        "prefetch": mode,
        "max_transfer_bytes": 16,
    }
    return World(replace(SETTINGS, max_open=2, overdraft_ms=0.0), **(values | changes))


def hint(world: World, name: str, tenant: str = "a", ttl_s: float = 1e6, size: int = 2) -> bool:
    world.sizes[key(name, tenant)] = size
    return world.scheduler.prefetch.warm(key(name, tenant), size, world.now + ttl_s)


def state(world: World, name: str, tenant: str = "a") -> State:
    return world.residency.state(key(name, tenant))


def steps(world: World, num: int = 40) -> None:
    for _ in range(num):
        world.step()
        world.check()


@pytest.mark.parametrize("mode", ["none", "queue", "all"])
def test_a_hint_brings_its_adapter_in_every_mode_and_its_first_user_claims_it(mode: str) -> None:
    w = world(mode)
    hint(w, "x")
    steps(w, 4)
    assert state(w, "x") is State.RESIDENT
    w.add("a", adapter="x")
    w.drain()
    tally = w.residency.prefetched.of("hint")
    assert (tally.num_started, tally.num_claimed, tally.num_wasted) == (1, 1, 0)
    assert w.residency.prefetched.total == tally
    assert not w.residency.demand.is_hinted(key("x"))


def test_a_hint_comes_after_what_waiting_requests_want_and_before_guesses() -> None:
    w = world("all", adapter_bytes=8)
    w.sizes[key("guessed")] = 2
    w.residency.demand.arrived(key("guessed"), 2)
    w.scheduler.prefetch._gone[key("guessed")] = None
    hint(w, "hinted")
    w.add("a", num_output_tokens=40)
    w.add("a", num_output_tokens=40)
    w.add("a", adapter="wanted")
    steps(w)
    order = [[name.digest for name in plan.prefetches] for plan in w.plans if plan.prefetches]
    assert order == [["wanted"], ["hinted"], ["guessed"]]


def test_a_hint_pushes_out_what_nobody_expects_and_not_what_is_used() -> None:
    for num_uses, expected in ((6, State.ABSENT), (0, State.RESIDENT)):
        w = world(adapter_bytes=8)
        for name in "pqrs":
            w.add("a", adapter=name)
            w.drain()
        for _ in range(num_uses):
            for name in "pqrs":
                w.add("a", adapter=name)
                w.drain()
        if not num_uses:
            for name in "pqrs":
                w.residency.demand.forget(key(name))
        hint(w, "x")
        steps(w)
        assert state(w, "x") is expected


def test_what_a_hint_has_brought_goes_for_a_load_and_not_for_a_guess_or_another_hint() -> None:
    w = world("all", adapter_bytes=8)
    for _ in range(6):
        w.add("b", adapter="often", num_bytes=8)
        w.drain()
    w.add("b", adapter="once", num_bytes=8)
    w.drain()
    for name in ("often", "once"):
        w.residency.demand.forget(key(name, "b"))
    hint(w, "x")
    steps(w, 3)
    assert state(w, "x") is State.RESIDENT
    for _ in range(50):
        w.residency.demand.arrived(key("often", "b"), 8)
    steps(w)
    assert state(w, "x") is State.RESIDENT, "a guess has pushed it out"
    hint(w, "y", "c", size=8)
    steps(w)
    assert state(w, "x") is State.RESIDENT, "another hint has pushed it out"
    w.add("b", adapter="often", num_bytes=8)
    w.drain()
    assert state(w, "x") is State.ABSENT
    assert w.residency.prefetched.of("hint").wasted_bytes == 2


def test_a_hint_ends_at_its_time_and_protects_its_adapter_no_longer() -> None:
    w = world("none")
    hint(w, "x", ttl_s=5.0)
    steps(w, 3)
    assert w.residency.demand.is_hinted(key("x"))
    w.now += 4.0
    hint(w, "x", ttl_s=2.0)
    w.now += 1.5
    steps(w, 1)
    assert w.residency.demand.is_hinted(key("x")), "it was renewed"
    w.now += 1.0
    steps(w, 1)
    assert not w.residency.demand.is_hinted(key("x"))
    assert not w.scheduler.prefetch.hints
    assert w.residency.demand.worth(key("x")) == 0.0


def test_a_repeat_that_ends_sooner_shortens_nothing() -> None:
    w = world()
    hint(w, "x", ttl_s=100.0)
    hint(w, "x", ttl_s=1.0)
    w.now += 50.0
    steps(w, 1)
    assert w.residency.demand.is_hinted(key("x"))


def test_tenants_take_turns_and_none_takes_more_than_half_of_what_hints_may() -> None:
    w = world()
    for number in range(8):
        hint(w, f"x{number}", "a")
    for number in range(3):
        hint(w, f"y{number}", "b")
    steps(w)
    order = [name.tenant for plan in w.plans for name in plan.prefetches]
    assert order == ["a", "b", "a", "b", "a", "b", "a"]
    assert w.residency.prefetched.total.num_wasted == 0


def test_hints_of_all_tenants_bring_no_more_than_a_quarter() -> None:
    w = world()
    for tenant in "abcdef":
        for number in range(4):
            hint(w, f"x{number}", tenant)
    steps(w)
    assert w.residency.held_bytes == 16


def test_the_worker_ignores_hints_beyond_its_own_bound_until_others_have_ended() -> None:
    w = world()
    assert all(hint(w, f"x{number}") for number in range(MAX_OF_TENANT))
    assert not hint(w, "more")
    assert hint(w, "x0")
    assert hint(w, "more", "b")
    w.add("a", adapter="x1")
    assert hint(w, "more")
    w.drain()


def test_a_hint_whose_load_fails_is_not_tried_again_and_a_dropped_adapter_is_not_fetched() -> None:
    w = world()
    hint(w, "bad")
    w.step()
    w.fail_load(key("bad"))
    hint(w, "gone")
    w.residency.drop(key("gone"))
    steps(w)
    assert w.num_prefetched == 1
    assert state(w, "bad") is state(w, "gone") is State.ABSENT


def test_metrics_tell_prefetches_apart_by_cause() -> None:
    w = world("queue")
    metrics = WorkerMetrics(CollectorRegistry(), w.scheduler, w.residency)
    hint(w, "x")
    hint(w, "unused")
    steps(w, 6)
    w.add("a", adapter="x")
    w.drain()
    metrics.observe(StepReport(StepPlan(1), Events()))
    text = metrics.render()
    for cause, name, count in (
        ("hint", "started", 2),
        ("hint", "claimed", 1),
        ("hint", "wasted", 0),
        ("guess", "started", 0),
        ("pin", "claimed", 0),
    ):
        labels = f'{{cause="{cause}",state="{name}"}}'
        assert f"loraplex_adapter_prefetches_by_cause_total{labels} {count}.0" in text
    assert 'loraplex_adapter_prefetches_total{state="started"} 2.0' in text


def test_a_gateway_keeps_what_is_left_of_its_hints_for_the_next_worker() -> None:
    now = [0.0]
    sent = HintsSent(lambda: now[0])
    sent.note(Warm("t", "a", 60.0))
    sent.note(Warm("t", "b", 10.0))
    sent.note(Warm("t", "c", 60.0))
    sent.note(Warm("t", "a", 20.0))
    sent.end("t", "c")
    sent.note(Warm("u", "a", 30.0))
    assert sent.of("t") == {"a": 60.0, "b": 10.0}
    now[0] = 15.0
    assert sent.of("t") == {"a": 45.0}
    assert sent.left() == [Warm("u", "a", 15.0), Warm("t", "a", 45.0)]
    now[0] = 60.0
    assert sent.left() == []


async def test_a_worker_that_connects_is_told_of_open_hints(tmp_path: Path) -> None:
    worker = ScriptedWorker(tmp_path / "w.sock", model_info(), 8)
    worker.client.warm(Warm("t", "d1", 1e6))
    await worker.start()
    await worker.settled()
    ((hinted,),) = (worker.hints,)
    assert (hinted.tenant, hinted.adapter) == ("t", "d1")
    assert 1e6 - 60 < hinted.ttl_s <= 1e6
    await worker.stop()


async def test_however_many_ask_at_once_where_an_adapter_is_the_worker_is_asked_once(
    tmp_path: Path,
) -> None:
    worker = ScriptedWorker(tmp_path / "w.sock", model_info(), 8)
    await worker.start()
    await worker.settled()
    asked = [worker.client.tier(tenant, "d1") for tenant in "ttttut"]
    assert await asyncio.gather(*asked) == ["store"] * 6
    assert worker.tier_queries == [("t", "d1"), ("u", "d1")]
    assert await worker.client.tier("t", "d1") == "store"
    assert len(worker.tier_queries) == 3
    await worker.stop()


# The simulated worker has 10 bytes for adapters; each takes as many as its digest is long.


@pytest.fixture
def address(tmp_path: Path) -> UnixAddress:
    return UnixAddress(socket_path(tmp_path))


@pytest.fixture
async def worker(address: UnixAddress) -> AsyncIterator[SimulatedWorker]:
    async with running(address) as worker:
        worker.runner.open()
        yield worker


async def test_two_gateways_hints_for_one_adapter_load_it_once(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    async with connected(address) as one, connected(address) as other:
        for client in (one, other, one):
            client.warm(Warm("t", "xx", 60.0))
        await worker.step_where(lambda report: bool(report.arrivals))
        assert await other.tier("t", "xx") == "device"
        assert await other.tier("u", "xx") == "store"
        await collect(other, build.submit("r", adapter="xx"))
    counts = worker.residency.prefetched.of("hint")
    assert (counts.num_started, counts.num_claimed) == (1, 1)
    assert worker.residency.counts.num_loads == 1


async def test_a_hint_for_what_cannot_be_read_breaks_nothing(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    def unreadable(digest: str) -> object:
        raise OSError(digest)

    async with connected(address) as client:
        worker.engine._adapter_sizes = unreadable  # type: ignore[assignment]  # fails on purpose
        client.warm(Warm("t", "xx", 60.0))
        assert await client.tier("t", "xx") == "store"
        assert len((await collect(client, build.submit("r")))[0]) == 4
    assert worker.residency.prefetched.total.num_started == 0


class HintMachine(RuleBasedStateMachine):
    """Requests, hints, drops and time in any order, on a world whose auditor trusts no account."""

    def __init__(self) -> None:
        super().__init__()
        self.world = world("all", adapter_bytes=16)
        prefetch = self.world.scheduler.prefetch
        self.follow_hints = prefetch._load_hinted
        prefetch._load_hinted = self.load_hinted  # type: ignore[method-assign]  # watched

    @rule(tenant=st.sampled_from("ab"), name=st.sampled_from("uvwxyz"), ttl_s=st.floats(0.01, 2))
    def hint(self, tenant: str, name: str, ttl_s: float) -> None:
        hint(self.world, name, tenant, ttl_s)

    @rule(tenant=st.sampled_from("ab"), name=st.sampled_from("uvwxyz"))
    def request(self, tenant: str, name: str) -> None:
        self.world.add(tenant, adapter=name)

    @rule(num=st.integers(1, 4))
    def step(self, num: int) -> None:
        for _ in range(num):
            self.world.step()

    def load_hinted(self, draft: Draft, now: float) -> None:
        before = self.loadable()
        self.follow_hints(draft, now)
        assert self.loadable() == before, "a hint has changed what can be loaded"

    def loadable(self) -> dict[str, int]:
        return {tenant: self.world.residency.loadable_bytes(tenant) for tenant in "ab"}

    @rule()
    def wait(self) -> None:
        self.world.now += 0.5

    @invariant()
    def hints_keep_within_their_bounds(self) -> None:
        residency = self.world.residency
        residency.check()
        brought = {"a": 0, "b": 0}
        for adapter, entry in residency._device.items():
            hinted = residency.prefetched.cause(adapter) == "hint"
            if hinted and residency.demand.is_hinted(adapter):
                brought[adapter.tenant] += entry.num_bytes
        assert sum(brought.values()) <= 4

    def teardown(self) -> None:
        self.world.drain()


TestHintMachine = HintMachine.TestCase
TestHintMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
