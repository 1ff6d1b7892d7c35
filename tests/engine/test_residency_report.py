"""What the worker tells of its memory."""

from types import SimpleNamespace

from tests.engine import build
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.adapters.last_evictions import NUM_EVICTIONS_KEPT
from loraplex.adapters.residency import HostMemory, Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.copy_link import CopyLink
from loraplex.engine.core import Engine
from loraplex.engine.inspection import Inspection
from loraplex.engine.mailbox import Mailbox
from loraplex.engine.residency_protocol import (
    ColdStatus,
    LinkStatus,
    ResidencyQuery,
    ResidencyReport,
)
from loraplex.engine.residency_report import report_of
from loraplex.engine.transfers import Transfers

A, B = AdapterKey("t", "a"), AdapterKey("t", "b")


class World:
    """A residency with room for one adapter of 4 bytes, and a clock."""

    def __init__(self) -> None:
        self.now = 10.0
        self.residency = Residency(4, host=HostMemory(8, lambda _: 3), clock=lambda: self.now)

    def load(self, key: AdapterKey, *, is_prefetch: bool = False) -> None:
        self.residency.start_load(key, 4, is_prefetch=is_prefetch)
        self.residency.finish_load(key)

    def report(self, cold: ColdStatus | None = None) -> ResidencyReport:
        return report_of(self.residency, cold or ColdStatus(), self.now, 7)


def test_what_has_happened_is_counted_by_route_source_and_cause() -> None:
    world = World()
    for key in (A, B, A):
        world.load(key, is_prefetch=key is B)
    world.residency.drop(B)
    for route in ("wait", "wait", "assist"):
        world.residency.counts.count_route(route)
    seen = world.report().since_start
    assert seen.routes == {"wait": 2, "assist": 1}
    assert seen.loads == {"store": 2, "host": 1}
    assert seen.evictions == {"device": {"prefetch": 1, "load": 1}, "host": {"drop": 1}}
    prefetches = seen.prefetches
    assert (prefetches.num_started, prefetches.num_claimed, prefetches.num_wasted) == (1, 0, 1)
    assert prefetches.wasted_bytes == 4


def test_the_last_evictions_are_told_with_tier_cause_and_age_newest_first() -> None:
    world = World()
    world.load(A)
    world.load(B)
    world.now = 12.0
    world.residency.drop(A)
    world.now = 15.0
    told = [(e.adapter, e.tier, e.cause, e.ago_s) for e in world.report().last_evictions]
    assert told == [("a", "host", "drop", 3.0), ("a", "device", "load", 5.0)]


def test_only_so_many_evictions_are_kept() -> None:
    world = World()
    for number in range(NUM_EVICTIONS_KEPT + 10):
        world.load(AdapterKey("t", str(number)))
    told = [e.adapter for e in world.report().last_evictions if e.tier == "device"]
    assert len(world.report().last_evictions) == NUM_EVICTIONS_KEPT
    assert told[0] == str(NUM_EVICTIONS_KEPT + 8), "the last one is still there"


def test_in_flight_is_what_has_not_come_of_adapters_on_their_way() -> None:
    world = World()
    link = LinkStatus(limit_bytes_per_s=1e6, measured_bytes_per_s=9e5)
    cold = ColdStatus(link=link, num_passes=1, num_assistants=2)
    assert world.report(cold).cold == cold
    world.residency.start_load(A, 4)
    assert world.report(cold).cold.link.in_flight_bytes == 4
    world.residency.note_layers(A, 3, 4)
    told = world.report(cold).cold
    assert (told.link.in_flight_bytes, told.link.limit_bytes_per_s) == (1, 1e6)
    world.residency.finish_load(A)
    assert world.report(cold).cold == cold


def test_an_engine_chooses_routes_by_the_processes_that_are_left() -> None:
    scheduler, runner = build.scheduler(build.config(num_assistants=4)), SimulatedRunner(16, 4)
    transfers = Transfers(build.Source(SimpleNamespace), lambda: None)
    engine = Engine(Mailbox(), scheduler, Residency(4), transfers, runner, build.sizes, lambda: 0.0)
    for num_left in (3, 0):
        runner.num_assistants = num_left
        engine.step()
        assert scheduler.routes.num_assistants == num_left
    transfers.close()


def test_an_engine_tells_of_its_link_its_passes_and_its_assistants() -> None:
    mailbox, residency = Mailbox(), Residency(4)
    told: list[ResidencyReport] = []
    scheduler = build.scheduler(residency=residency)
    runner = SimulatedRunner(16, 4)
    runner.num_cold_passes, runner.num_assistants = 2, 3
    link = CopyLink(limit_bytes_per_s=5e6)
    transfers = Transfers(build.Source(SimpleNamespace), lambda: None, link=link)
    engine = Engine(mailbox, scheduler, residency, transfers, runner, build.sizes, lambda: 0.0)
    mailbox.put(Inspection(ResidencyQuery(9), told.append))
    engine.step()
    transfers.close()
    (report,) = told
    assert report.query_id == 9
    link_told = LinkStatus(limit_bytes_per_s=5e6)
    assert report.cold == ColdStatus(link=link_told, num_passes=2, num_assistants=3)
