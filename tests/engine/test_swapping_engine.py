"""Copies of KV blocks in the steps of a whole engine."""

from collections.abc import Iterator

import pytest
from tests.engine import build
from tests.engine.simulated_runner import SimulatedRunner, expected_output

from loraplex.adapters.residency import Residency
from loraplex.engine.core import Engine
from loraplex.engine.events import Events
from loraplex.engine.mailbox import Mailbox
from loraplex.engine.plan import StepPlan
from loraplex.engine.scheduler import Scheduler
from loraplex.engine.transfers import Transfers

PROMPTS = {"a": tuple(range(20)), "b": tuple(range(100, 120))}
NUM_TOKENS = 20


class CopyingRunner(SimulatedRunner):
    """Notes what was copied, or cannot copy."""

    def __init__(self) -> None:
        super().__init__(12, 4)
        self.num_copied_blocks = 0
        self.is_broken = False

    def copy(self, plan: StepPlan) -> None:
        if self.is_broken:
            raise RuntimeError("the host is out of memory")
        self.num_copied_blocks += plan.num_copied_blocks
        super().copy(plan)


class World:
    def __init__(self) -> None:
        config = build.config(num_blocks=12, num_host_blocks=16, copy_ms_per_block=0.1)
        mailbox, residency, self.runner = Mailbox(), Residency(0), CopyingRunner()
        self.scheduler: Scheduler = build.scheduler(config, residency)
        self.transfers = Transfers(build.Source(lambda _: None), mailbox.wake)
        self.engine = Engine(
            mailbox,
            self.scheduler,
            residency,
            self.transfers,
            self.runner,
            build.sizes,
            lambda: 0.0,
        )
        for name, prompt in PROMPTS.items():
            mailbox.put(build.submit(name, 20, NUM_TOKENS, prompt=prompt))
        self.outputs: dict[str, list[int]] = {}

    def take(self, events: Events) -> None:
        for tokens in events.tokens:
            self.outputs.setdefault(tokens.request_id, []).extend(tokens.ids)

    def run(self) -> None:
        self.take(self.engine.step().events)
        while self.scheduler.has_work:
            self.take(self.engine.step().events)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.transfers.close()


def expected(name: str) -> list[int]:
    return expected_output(PROMPTS[name], None, NUM_TOKENS, build.EOS)


def test_an_engine_copies_what_its_plans_say_before_it_computes(world: World) -> None:
    world.run()
    assert world.runner.num_copied_blocks > 0
    assert world.outputs == {name: expected(name) for name in PROMPTS}


def test_a_copy_that_breaks_fails_its_step_and_who_was_preempted_is_computed_again(
    world: World,
) -> None:
    world.runner.is_broken = True
    with pytest.raises(RuntimeError, match="out of memory"):
        world.run()
    failed = world.engine.failure_events().failed
    assert [each.request_id for each in failed] == ["a"]
    world.runner.is_broken = False
    world.scheduler.check()
    world.run()
    assert world.outputs["b"] == expected("b")
    assert world.runner.num_copied_blocks == 0
