from dataclasses import asdict, replace

import pytest
from tests.engine.simulation import worlds

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import StepPlan
from loraplex.engine.simulation.copies import CopyLink
from loraplex.engine.simulation.devices import LinearTimes
from loraplex.engine.simulation.errors import SimulationError
from loraplex.engine.simulation.experiment import CACHES, POLICIES, at_load, run_policy
from loraplex.engine.simulation.metrics import measure
from loraplex.engine.simulation.records import Run
from loraplex.engine.simulation.traces import TraceRequest


def outcome(run: Run) -> list[dict[str, object]]:
    return [asdict(record) for record in run.records]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_ends_with_all_its_tokens_and_the_time_is_divided_without_rest(
    policy: str,
) -> None:
    load = tuple(
        replace(request, cancelled_after_s=0.06) if i % 5 == 0 else request
        for i, request in enumerate(worlds.requests(60, adapters=5))
    )
    run = run_policy(worlds.setup(load, slots=2, noise=0.1, max_tokens=60), policy)
    for request, record in zip(load, run.records, strict=True):
        assert record.end_s is not None
        assert record.cancelled or record.output_tokens == request.output_tokens
        assert record.output_tokens <= request.output_tokens
    assert sum(record.machine_ms for record in run.records) == pytest.approx(run.busy_ms)
    assert sum(record.cancelled for record in run.records) > 0


def test_a_run_is_a_function_of_its_seed() -> None:
    setup = worlds.setup(worlds.requests(40, adapters=5), slots=2, noise=0.2)
    assert outcome(run_policy(setup)) == outcome(run_policy(setup))
    assert outcome(run_policy(setup)) != outcome(run_policy(replace(setup, seed=1)))


@pytest.mark.parametrize("cache", CACHES)
def test_every_adapter_is_copied_once_where_there_is_room_for_all(cache: str) -> None:
    run = run_policy(worlds.setup(worlds.requests(24, adapters=4)), "fcfs", cache)
    assert run.num_loads == 12  # each of three tenants uses each of four
    assert run.critical_bytes == 12 * 8000


def test_where_copies_are_fast_preempted_requests_are_swapped_and_all_end_sooner() -> None:
    crowd = tuple(replace(r, output_tokens=40) for r in worlds.requests(40, gap_s=0.0))
    times = LinearTimes(10.0, 2.0, 1.0, 0.001)
    alone = worlds.device(times=times, kv_tokens=128, kv_token_bytes=100, copy_bytes_per_s=1e7)
    devices = alone, replace(alone, host_kv_tokens=1024)
    setup = worlds.setup(crowd, kv_forecast=False)
    runs = [run_policy(replace(setup, device=each), "fcfs") for each in devices]
    assert runs[0].num_preempted > 0
    assert [run.num_swapped > 0 for run in runs] == [False, True]
    assert runs[1].duration_s < runs[0].duration_s


class Link(CopyLink):
    """One of 1000 bytes a second, and adapters of given sizes."""

    def __init__(self, **num_bytes: int) -> None:
        self.now = 0.0
        super().__init__(1000.0, lambda key: num_bytes[key.digest], lambda: self.now)

    def at(self, now: float, **orders: str) -> str:
        """What has arrived by then; then give orders."""
        self.now = now
        arrived = "".join(arrival.key.digest for arrival in self.arrivals())
        keys = {kind: tuple(AdapterKey("t", n) for n in names) for kind, names in orders.items()}
        self.start(StepPlan(1, (), **({"loads": (), "evictions": ()} | keys)))  # type: ignore[arg-type]  # wrong on purpose, or replaced for the test
        return arrived


def test_copies_share_one_link_in_the_order_of_their_start() -> None:
    link = Link(a=1000, b=500)
    link.at(10.0, loads="ab")
    assert link.bytes_in_flight == 1500
    assert link.at(10.9) == ""
    assert link.next_arrival_s == pytest.approx(11.0, abs=0.01)
    assert link.at(11.4) == "a"
    assert link.at(11.6) == "b"
    assert link.bytes_in_flight == 0
    assert link.next_arrival_s == float("inf")


def test_a_prefetch_that_is_being_copied_pauses_for_a_load() -> None:
    link = Link(a=1000, b=1000)
    link.at(0.0, prefetches="a")
    link.at(0.5, loads="b")
    assert link.next_arrival_s == pytest.approx(1.5, abs=0.01)
    assert link.at(1.6) == "b"
    assert link.at(1.9) == ""
    assert link.at(2.1) == "a"


def test_layers_of_a_prefetch_that_pauses_stay_there_and_the_next_comes_later() -> None:
    a, b = (AdapterKey("t", name) for name in "ab")
    link = Link(a=1000, b=1000)
    link.at(0.0, prefetches="a")
    link.at(0.51)
    assert dict(link.progress()) == {a: 16}
    link.at(0.51, loads="b")
    assert dict(link.progress()) == {a: 16, b: 0}
    assert link.layer_arrival_s(a, 15) <= link.now
    assert link.layer_arrival_s(a, 16) == pytest.approx(1.51 + 0.5 / 16, abs=0.01)
    assert link.at(1.55) == "b"
    assert dict(link.progress()) == {a: 17}
    assert link.next_layer_s == link.layer_arrival_s(a, 17)
    assert link.at(2.1) == "a"
    assert b not in dict(link.progress())


def test_a_prefetch_that_is_claimed_goes_before_the_others() -> None:
    link = Link(a=1000, b=1000)
    link.at(0.0, prefetches="ab")
    link.at(0.5, claims="b")
    assert link.at(1.6) == "b"
    assert link.at(2.1) == "a"


@pytest.mark.parametrize("given_up_at", [0.5, 1.0005])
def test_a_prefetch_that_is_given_up_never_arrives(given_up_at: float) -> None:
    link = Link(a=1000)
    link.at(0.0, prefetches="a")
    link.at(given_up_at, evictions="a")
    assert link.bytes_in_flight == 0
    assert link.at(5.0) == ""


def test_time_jumps_to_the_next_arrival_when_nothing_runs() -> None:
    load = worlds.requests(2, gap_s=1000.0)
    run = run_policy(worlds.setup(load), "fcfs")
    assert [record.started_s for record in run.records] == [0.0, 1000.0]
    assert run.num_steps == sum(request.output_tokens for request in load)


def test_a_device_that_admits_every_tenth_step_makes_those_who_come_between_wait() -> None:
    load = (TraceRequest(0.0, "t", 5, 30), TraceRequest(0.02, "t", 5, 30))
    slow = replace(worlds.device(), steps_between_joins=10)
    setup = replace(worlds.setup(load), device=slow)
    starts = [record.started_s or 0.0 for record in run_policy(setup, "fcfs").records]
    soon = [r.started_s or 0.0 for r in run_policy(worlds.setup(load), "fcfs").records]
    assert soon[1] < 0.05
    assert starts[1] > 0.1


def test_a_load_of_one_fills_the_device_for_as_long_as_requests_arrive() -> None:
    setup = worlds.setup(worlds.requests(80, gap_s=1.0))
    requests = at_load(setup, 1.0)
    run = run_policy(replace(setup, requests=requests), "fcfs")
    assert run.busy_ms / 1e3 == pytest.approx(requests[-1].arrival_s, rel=0.35)
    assert run.busy_ms / 1e3 / run.duration_s > 0.8


def test_metrics_of_a_run_are_all_there_and_plausible() -> None:
    metrics = measure(run_policy(worlds.setup(worlds.requests(60, adapters=5), slots=2)))
    assert 0 < metrics.p50_ttft_s <= metrics.p99_ttft_s
    assert 0 < metrics.jain_satisfied <= 1
    assert 0 <= metrics.interruption_share < 1
    assert 0 <= metrics.adapter_hit_rate < 1
    assert metrics.planner_us_p50 > 0


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"max_tokens": 1000}, "--max-tokens 1000"), ({"slots": 0}, "0 slots")],
)
def test_what_cannot_be_simulated_is_refused(changes: dict[str, int], told: str) -> None:
    load = worlds.requests(3, adapters=1)
    with pytest.raises(SimulationError, match=told):
        run_policy(worlds.setup(load, **changes))


def test_an_unknown_policy_or_cache_is_refused_with_those_that_are_known() -> None:
    setup = worlds.setup(worlds.requests(3))
    with pytest.raises(SimulationError, match=r"policy 'best'.*fair.*vtc"):
        run_policy(setup, "best")
    with pytest.raises(SimulationError, match=r"cache 'best'.*lru.*belady"):
        run_policy(setup, "fcfs", "best")
