"""Stages of the check: each in a process of its own, within its budget, whatever becomes of others.

A fault of a kernel leaves a process that can use the card no more; only its own stage then fails.
"""

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from time import monotonic
from typing import Self

import torch

from loraplex.platform.bench.gpu.records import Fact, Record, Records

_GRACE_S = 10
"""After its budget a stage is killed if it does not end by itself."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What every stage is told."""

    device: torch.device
    """A GPU, or, to try the check itself, the CPU."""
    small: bool
    """Small sizes, for that purpose."""
    facts: dict[str, float]
    """Numbers that stages before found."""

    @property
    def on_gpu(self) -> bool:
        """False where the check itself is tried."""
        return self.device.type == "cuda"


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the check."""

    name: str
    budget_s: float
    run: Callable[[Setup], Records]
    is_timed: bool = False
    """Whether it measures, and so must have the card for itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a stage."""

    name: str
    budget_s: float
    seconds: float
    records: tuple[Record, ...]
    error: str | None = None
    """Why it did not come to its end."""

    @property
    def facts(self) -> dict[str, float]:
        """Its numbers."""
        facts = [record for record in self.records if isinstance(record, Fact)]
        return {fact.name: fact.value for fact in facts if not isinstance(fact.value, str)}


@dataclass(frozen=True, slots=True)
class _Running:
    """A stage that has been started."""

    stage: Stage
    process: ForkProcess
    receiver: Connection
    started_s: float
    budget_s: float

    @classmethod
    def start(cls, stage: Stage, setup: Setup, most_s: float) -> Self:
        budget_s = min(stage.budget_s, most_s)
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(stage, setup, budget_s, sender), daemon=True)
        child.start()
        sender.close()
        return cls(stage, child, receiver, monotonic(), budget_s)

    def outcome(self) -> Outcome:
        """Wait for its end, and end it where that does not come."""
        records: list[Record] = []
        try:
            deadline = self.started_s + self.budget_s + _GRACE_S
            error = _receive(self.receiver, records, deadline)
            seconds = monotonic() - self.started_s
            self.process.join(_GRACE_S if error in {None, _BROKEN_OFF} else 0)
        finally:
            self.process.kill()
            self.process.join()
        if error == _BROKEN_OFF:
            error = f"its process ended with status {self.process.exitcode}"
        return Outcome(self.stage.name, self.stage.budget_s, seconds, tuple(records), error)


def run_stages(stages: Sequence[Stage], setup: Setup, most_s: float) -> Iterator[Outcome]:
    """Run stages, each in a child process, for its budget or ``most_s`` at most; those that are
    given together run at the same time.

    This process must not have used the card, nor torch's threads: it is forked.
    """
    running = [_Running.start(stage, setup, most_s) for stage in stages]
    for each in running:
        yield each.outcome()


_BROKEN_OFF = "broken off"


def _receive(receiver: Connection, records: list[Record], deadline: float) -> str | None:
    """Collect records until the stage ends; return why it ended early, if it did."""
    while receiver.poll(max(0.0, deadline - monotonic())):
        try:
            received = receiver.recv()
        except EOFError:
            return _BROKEN_OFF
        if received is None or isinstance(received, str):
            return received
        records.append(received)
    return "killed: it went on after its budget"


def _child(stage: Stage, setup: Setup, budget_s: float, sender: Connection) -> None:
    started = monotonic()
    try:
        for record in stage.run(setup):
            sender.send(record)
            if monotonic() - started > budget_s:
                sender.send(f"cut off: {budget_s:g} s are over")
                return
        sender.send(None)
    except Exception as error:  # noqa: BLE001  whatever it is, the other stages go on
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
        sender.send(f"{type(error).__name__} at {where}: {str(error)[:500]}")
