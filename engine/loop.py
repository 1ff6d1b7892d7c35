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
    """Runs an engine until it is stopped; `publish` takes each step's report, in order, while the
    device computes the next step.

    No report is published twice, since it may have gone out in part. If `publish` raises, `run`
    ends the step that is computed meanwhile, publishes that, and raises the same.
    """

    engine: Engine[Any]
    mailbox: Mailbox
    publish: Callable[[StepReport], None]
    stopped: bool = False
    _unpublished: StepReport | None = None
    _failure: Exception | None = None
    """Of `publish`, during a step."""

    def run(self) -> None:
        """Body of the engine's thread. Raises what made MAX_FAILED_STEPS steps in a row fail, and
        what `publish` raises. The engine is closed at the end."""
        try:
            self._run_steps()
        finally:
            self.engine.close()

    def _run_steps(self) -> None:
        num_failed = 0
        while not self.stopped:
            # Not inside the step, whose time is what requests are charged for.
            if (aside := self.mailbox.take_aside()) is not None:
                self._publish()
                aside()
            try:
                report = self.engine.step(self._publish_beside)
            except Exception:
                # Whatever went wrong inside one step has failed that step's requests alone.
                num_failed += 1
                _log.exception("a step failed")
                self._publish()
                self.publish(StepReport(StepPlan(0), self.engine.failure_events()))
                if num_failed == MAX_FAILED_STEPS:
                    raise
                self._check_published()
                continue
            num_failed = 0
            self._publish()  # where nothing was launched
            self._unpublished = report
            self._check_published()
            if not report.plan.num_requests:
                self._publish()
                self.mailbox.wait(self.engine.idle_s)
        self._publish()

    def stop(self) -> None:
        """End `run` after the step in progress; safe from any thread."""
        self.stopped = True
        self.mailbox.wake()

    def _publish_beside(self) -> None:
        try:
            self._publish()
        except Exception as error:  # noqa: BLE001  whatever it is, the step goes on
            self._failure = error

    def _check_published(self) -> None:
        if self._failure is not None:
            self._publish()
            raise self._failure

    def _publish(self) -> None:
        report, self._unpublished = self._unpublished, None
        if report is not None:
            self.publish(report)
