"""Requests that the worker makes itself, through its own scheduler."""

import asyncio
from collections.abc import Callable

from loraplex.engine.client_events import failure_of, rejection_of
from loraplex.engine.core import StepReport
from loraplex.engine.errors import EngineError
from loraplex.engine.protocol import Abort, Submit, Tokens
from loraplex.engine.self_test.comparison import ServedTokens
from loraplex.engine.self_test.prompts import ProbePrompt


class _Running:
    """A request that has not ended."""

    def __init__(self) -> None:
        self.tokens: list[Tokens] = []
        self.ended: asyncio.Future[EngineError | None] = asyncio.get_running_loop().create_future()


class ServedPath:
    """Runs requests beside those of gateways. Belongs to one event loop."""

    def __init__(self, put: Callable[[Submit | Abort], object]) -> None:
        """`put` hands a message to the engine."""
        self._put = put
        self._running: dict[str, _Running] = {}

    async def run(self, submit: Submit) -> ServedTokens:
        """Run a request to its end; if this is cancelled, the request is aborted.

        Raises RequestRefused, EngineOverloaded, RequestFailed.
        """
        running = self._running[submit.request_id] = _Running()
        self._put(submit)
        try:
            error = await running.ended
        except asyncio.CancelledError:
            self._put(Abort(submit.request_id))
            raise
        finally:
            del self._running[submit.request_id]
        if error is not None:
            raise error
        return ServedTokens(
            prompt=ProbePrompt(submit.prompt, submit.adapter_start),
            tokens=tuple(token for tokens in running.tokens for token in tokens.ids),
            logprobs=tuple(
                entry.drawn.logprob for tokens in running.tokens for entry in tokens.logprobs
            ),
        )

    def publish(self, report: StepReport) -> None:
        """Take what a step has for these requests. On the loop's thread."""
        if not self._running:
            return
        events = report.events
        for tokens in events.tokens:
            if (running := self._running.get(tokens.request_id)) is not None:
                running.tokens.append(tokens)
        for rejected in events.rejected:
            self._end(rejected.request_id, rejection_of(rejected))
        for failed in events.failed:
            self._end(failed.request_id, failure_of(failed))
        for finished in events.finished:
            self._end(finished.request_id, None)

    def _end(self, request_id: str, error: EngineError | None) -> None:
        running = self._running.get(request_id)
        if running is not None and not running.ended.done():
            running.ended.set_result(error)
