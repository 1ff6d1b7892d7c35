"""What a gateway makes of a worker's events."""

import asyncio
from collections.abc import Iterable, Sequence

from loraplex.engine.errors import (
    AdapterOverCap,
    AdapterUnfit,
    DeadlineUnreachable,
    EngineError,
    EngineOverloaded,
    JournalUnavailable,
    RequestFailed,
    RequestRefused,
)
from loraplex.engine.protocol import (
    ADAPTER_MISMATCH,
    Explained,
    Failed,
    Finished,
    Rejected,
    Tokens,
)

Event = Tokens | Finished | EngineError


class OpenRequest:
    """A request that the worker has not ended yet."""

    def __init__(self, max_events: int) -> None:
        self.max_events = max_events
        self.ended: asyncio.Future[Finished | None] = asyncio.get_running_loop().create_future()
        self.questions: list[asyncio.Future[Explained]] = []
        self.abandoned = False
        self._events: list[Event] = []
        self._arrival: asyncio.Future[None] | None = None
        """What its reader waits for, while it waits."""

    @property
    def num_unread(self) -> int:
        """Events that wait for the reader."""
        return len(self._events)

    def put(self, event: Event) -> None:
        """Add an event. A reader wakes once for all that come before it runs."""
        self._events.append(event)
        if self._arrival is not None:
            if not self._arrival.done():  # else the reader was cancelled
                self._arrival.set_result(None)
            self._arrival = None

    def drop_unread(self) -> None:
        """Forget what the reader has not taken."""
        self._events.clear()

    async def take(self) -> Sequence[Event]:
        """Wait for events and remove all that are there, each choice's neighbouring tokens as one.
        For one reader."""
        if not self._events:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        events, self._events = self._events, []
        return events if len(events) == 1 else _merged(events)


def failure_of(failed: Failed) -> RequestFailed:
    """What is raised for a request that failed."""
    kind = AdapterUnfit if failed.code == ADAPTER_MISMATCH else RequestFailed
    return kind(failed.message, failed.code)


def rejection_of(rejected: Rejected) -> EngineError:
    """What is raised for a request that never ran."""
    if rejected.code == "over_cap":
        return AdapterOverCap(rejected.message, rejected.field)
    if rejected.code == "refused":
        return RequestRefused(rejected.message, rejected.field)
    if rejected.code == "journal_unavailable":
        return JournalUnavailable(rejected.message, rejected.retry_after_s)
    kind = DeadlineUnreachable if rejected.code == "late" else EngineOverloaded
    return kind(rejected.message, rejected.retry_after_s)


def ending_of(failed: Failed) -> Finished:
    """What a failed request ran, in the form in which an abort reports it."""
    return Finished(
        request_id=failed.request_id,
        reason="abort",
        usage=failed.usage,
        output_digest=failed.output_digest,
    )


def _merged(events: Iterable[Event]) -> list[Event]:
    """The same events with each choice's neighbouring tokens in one, so that they cost the reader
    one write."""
    merged: list[Event] = []
    by_choice: dict[int, list[Tokens]] = {}
    for event in events:
        if isinstance(event, Tokens):
            by_choice.setdefault(event.choice, []).append(event)
        else:
            merged += map(_joined, by_choice.values())
            merged.append(event)
            by_choice.clear()
    merged += map(_joined, by_choice.values())
    return merged


def _joined(run: list[Tokens]) -> Tokens:
    if len(run) == 1:
        return run[0]
    return Tokens(
        request_id=run[0].request_id,
        choice=run[0].choice,
        sequence=run[0].sequence,
        ids=tuple(token_id for tokens in run for token_id in tokens.ids),
        text="".join(tokens.text for tokens in run),
        logprobs=tuple(entry for tokens in run for entry in tokens.logprobs),
        finish_reason=run[-1].finish_reason,
    )
