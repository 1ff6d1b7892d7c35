"""The engine's thread: step after step, as long as there is work."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loraplex.engine.core import Engine, StepReport
from loraplex.engine.mailbox import Mailbox
from loraplex.engine.plan import StepPlan

_log = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3
"""Steps in a row that may fail before the process is given up, to be started afresh."""


@dataclass(slots=True)
class EngineLoop:
    """Runs an engine until it is stopped; `publish` takes each step's report."""

    engine: Engine[Any]
    mailbox: Mailbox
    publish: Callable[[StepReport], None]
    stopped: bool = False

    def run(self) -> None:
        """Body of the engine's thread. Raises what made MAX_FAILED_STEPS steps in a row fail."""
        num_failed = 0
        while not self.stopped:
            # Not inside the step, whose time is what requests are charged for.
            if (aside := self.mailbox.take_aside()) is not None:
                aside()
            try:
                report = self.engine.step()
                num_failed = 0
            except Exception:
                # Whatever went wrong inside one step has failed that step's requests alone.
                num_failed += 1
                _log.exception("a step failed")
                self.publish(StepReport(StepPlan(0), self.engine.failure_events()))
                if num_failed == MAX_FAILED_STEPS:
                    raise
                continue
            self.publish(report)
            if not report.plan.num_requests:
                self.mailbox.wait(self.engine.idle_s)

    def stop(self) -> None:
        """End `run` after the step in progress; safe from any thread."""
        self.stopped = True
        self.mailbox.wake()
