"""What happens between the launch of a step and its end: nothing that could change it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import SimpleNamespace

import pytest
from tests.engine import build
from tests.engine.simulated_runner import SimulatedRunner, expected_output

from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine import core
from loraplex.engine.core import Engine, StepReport
from loraplex.engine.events import Events
from loraplex.engine.loop import MAX_FAILED_STEPS, EngineLoop
from loraplex.engine.mailbox import Mailbox
from loraplex.engine.plan import StepOutput, StepPlan
from loraplex.engine.protocol import Abort
from loraplex.engine.transfers import Transfers


class LaunchingRunner(SimulatedRunner):
    """Computes at launch, as a device that is fast; `collect` may fail."""

    overlaps = True

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.errors: list[Exception] = []
        self.is_computing = False

    def copy(self, plan: StepPlan) -> None:
        assert not self.is_computing, "a step is copied for before the last was collected"
        super().copy(plan)

    def launch(self, plan: StepPlan) -> StepOutput:
        assert not self.is_computing
        self.is_computing = True
        return self.run(plan)

    def keep_passes(self, plan: StepPlan) -> None:
        pass

    def abandon(self) -> None:
        self.is_computing = False

    def collect(self, launched: StepOutput) -> StepOutput:
        self.is_computing = False
        if self.errors:
            raise self.errors.pop()
        return launched


class World:
    def __init__(self, load: Callable[[str], object]) -> None:
        config = build.config()
        self.mailbox, self.residency = Mailbox(), Residency(10)
        self.runner = LaunchingRunner(config.num_blocks, config.block_size)
        self.scheduler = build.scheduler(config, self.residency)
        self.loaded = Event()
        self.transfers = Transfers(build.Source(load), self.loaded.set)
        self.engine = Engine(
            self.mailbox,
            self.scheduler,
            self.residency,
            self.transfers,
            self.runner,
            build.sizes,
            lambda: 0.0,
        )


@pytest.fixture
def world() -> Iterator[World]:
    made = World(lambda digest: SimpleNamespace(digest=digest))
    yield made
    made.scheduler.check()
    made.transfers.close()


def tokens(report: StepReport) -> dict[str, int]:
    return {event.request_id: event.ids[0] for event in report.events.tokens}


def test_an_abort_during_a_step_ends_the_request_after_it_and_bills_its_token(world: World) -> None:
    world.mailbox.put(build.submit("a", max_tokens=10))
    world.engine.step()
    during = world.engine.step(lambda: world.mailbox.put(Abort("a")))
    assert tokens(during).keys() == {"a"}
    (ended,) = world.engine.step().events.finished
    assert (ended.reason, ended.usage.completion_tokens) == ("abort", 2)
    assert world.scheduler.num_free_blocks == build.config().num_blocks


def test_a_request_that_comes_during_a_step_runs_in_the_next(world: World) -> None:
    world.mailbox.put(build.submit("a", max_tokens=10))
    world.engine.step(lambda: world.mailbox.put(build.submit("b", max_tokens=10)))
    assert world.scheduler.num_waiting == 1
    assert tokens(world.engine.step()).keys() == {"a", "b"}


def test_messages_keep_their_order_whenever_they_come(world: World) -> None:
    def send() -> None:
        world.mailbox.put(build.submit("b"), Abort("b"), build.submit("c"))

    world.mailbox.put(build.submit("a", max_tokens=10))
    world.engine.step(send)
    assert world.scheduler.num_waiting == 1, "what comes behind an abort has overtaken it"
    report = world.engine.step()
    assert tokens(report).keys() == {"a", "c"}
    assert [event.request_id for event in report.events.finished] == ["b"]


def test_an_adapter_that_arrives_during_a_step_is_used_in_the_next(world: World) -> None:
    world.mailbox.put(build.submit("a", max_tokens=10), build.submit("b", adapter="x"))

    def wait_for_load() -> None:
        assert world.loaded.wait(10)

    world.engine.step(wait_for_load)
    assert world.residency.state(AdapterKey("t", "x")) is State.LOADING
    assert tokens(world.engine.step()).keys() == {"a", "b"}


def test_a_step_that_fails_when_it_is_collected_fails_its_requests_alone(world: World) -> None:
    world.mailbox.put(build.submit("a", max_tokens=10))
    world.engine.step()
    world.runner.errors.append(RuntimeError("the device is lost"))
    submit = build.submit("b", max_tokens=3)
    with pytest.raises(RuntimeError):
        world.engine.step(lambda: world.mailbox.put(submit))
    (failed,) = world.engine.failure_events().failed
    assert (failed.request_id, failed.usage.completion_tokens) == ("a", 1)
    found = []
    while world.scheduler.has_work:
        found += tokens(world.engine.step()).values()
    assert found == expected_output(submit.prompt, None, 3, build.EOS)


def test_a_step_that_fails_before_it_is_collected_is_awaited(world: World) -> None:
    def fail() -> None:
        raise RuntimeError("the stream is broken")

    world.mailbox.put(build.submit("a", max_tokens=10))
    with pytest.raises(RuntimeError, match="stream"):
        world.engine.step(fail)
    assert not world.runner.is_computing
    (failed,) = world.engine.failure_events().failed
    assert (failed.request_id, failed.usage.completion_tokens) == ("a", 0)


@pytest.mark.parametrize("overlaps", [True, False])
def test_what_is_done_while_nothing_computes_is_not_time_of_the_step(
    world: World, overlaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    charged_ms: list[float] = []
    commit = world.scheduler.commit

    def committed(plan: StepPlan, output: StepOutput, step_ms: float, copy_ms: float) -> Events:
        charged_ms.append(step_ms)
        return commit(plan, output, step_ms, copy_ms)

    def meanwhile() -> None:
        nonlocal now_s
        now_s += 2.0

    monkeypatch.setattr(core, "perf_counter", lambda: now_s)
    monkeypatch.setattr(world.scheduler, "commit", committed)
    world.runner.overlaps = overlaps
    world.mailbox.put(build.submit("a"))
    report = world.engine.step(meanwhile)
    assert (charged_ms, report.run_s) == (([2000.0], 2.0) if overlaps else ([0.0], 0.0))
    assert report.commit_s == 0


@contextmanager
def looping(world: World, publish: Callable[[StepReport], None]) -> Iterator[EngineLoop]:
    loop = EngineLoop(world.engine, world.mailbox, publish)
    thread = Thread(target=loop.run, daemon=True)
    thread.start()
    yield loop
    thread.join(10)
    assert not thread.is_alive(), "the loop goes on"


def test_reports_are_published_in_order_and_while_the_next_step_computes(world: World) -> None:
    published: list[tuple[int, bool]] = []
    done = Event()

    def publish(report: StepReport) -> None:
        published.append((report.plan.step, world.runner.is_computing))
        if report.events.finished:
            done.set()

    with looping(world, publish) as loop:
        world.mailbox.put(build.submit("a", max_tokens=4))
        assert done.wait(10)
        loop.stop()
    with_work = [step for step, _ in published]
    assert with_work == sorted(with_work)
    first = next(place for place, (_, is_beside) in enumerate(published) if is_beside)
    assert [is_beside for _, is_beside in published[first : first + 4]] == [True, True, True, False]


def test_a_loop_that_is_stopped_during_a_step_collects_and_publishes_it(world: World) -> None:
    reports: list[StepReport] = []

    def publish(report: StepReport) -> None:
        reports.append(report)
        if world.runner.is_computing:
            loop.stop()

    with looping(world, publish) as loop:
        world.mailbox.put(build.submit("a", max_tokens=10))
    assert not world.runner.is_computing
    assert [len(tokens(report)) for report in reports if report.plan.num_requests] == [1, 1]


def test_what_a_step_gave_is_published_before_the_failure_of_the_next(world: World) -> None:
    reports: list[StepReport] = []

    def publish(report: StepReport) -> None:
        reports.append(report)
        if world.runner.is_computing:
            world.runner.errors += [RuntimeError("broken")] * MAX_FAILED_STEPS
        if report.events.failed:
            loop.stop()

    with looping(world, publish) as loop:
        world.mailbox.put(build.submit("a", max_tokens=10))
    told = [(len(r.events.tokens), len(r.events.failed)) for r in reports if r.events]
    assert told == [(1, 0), (0, 1)]


def test_a_report_that_cannot_be_published_ends_the_loop_and_fails_no_step(world: World) -> None:
    reports: list[StepReport] = []

    def publish(report: StepReport) -> None:
        reports.append(report)
        if world.runner.is_computing:
            raise OSError("the disk is full")

    loop = EngineLoop(world.engine, world.mailbox, publish)
    world.mailbox.put(build.submit("a", max_tokens=10))
    with pytest.raises(OSError, match="the disk is full"):
        loop.run()
    told = [(len(r.events.tokens), len(r.events.failed)) for r in reports if r.events]
    assert told == [(1, 0), (1, 0)]
    assert world.scheduler.num_running == 1
