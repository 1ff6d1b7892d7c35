"""What a gateway makes of a worker's events."""

import asyncio
import itertools
from collections.abc import Iterator

from loraplex.engine.errors import (
    AdapterOverCap,
    AdapterUnfit,
    DeadlineUnreachable,
    EngineError,
    EngineOverloaded,
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


class OpenRequest:
    """A request that the worker has not ended yet."""

    def __init__(self, max_events: int) -> None:
        self.events: asyncio.Queue[Tokens | Finished | EngineError] = asyncio.Queue()
        self.max_events = max_events
        self.ended: asyncio.Future[Finished | None] = asyncio.get_running_loop().create_future()
        self.questions: list[asyncio.Future[Explained]] = []
        self.abandoned = False

    async def take(self) -> list[Tokens | Finished | EngineError]:
        """Wait for events and remove all that are there."""
        taken = [await self.events.get()]
        while not self.events.empty():
            taken.append(self.events.get_nowait())
        return taken


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
    kind = DeadlineUnreachable if rejected.code == "late" else EngineOverloaded
    return kind(rejected.message, rejected.retry_after_s)


def merged(
    events: list[Tokens | Finished | EngineError],
) -> Iterator[Tokens | Finished | EngineError]:
    """The same events with each choice's neighbouring tokens in one, so that they cost the reader
    one write."""
    for are_tokens, group in itertools.groupby(events, lambda e: isinstance(e, Tokens)):
        if not are_tokens:
            yield from group
            continue
        by_choice: dict[int, list[Tokens]] = {}
        for event in group:
            assert isinstance(event, Tokens)
            by_choice.setdefault(event.choice, []).append(event)
        yield from map(_joined, by_choice.values())


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


def ending_of(failed: Failed) -> Finished:
    """What a failed request ran, in the form in which an abort reports it."""
    return Finished(request_id=failed.request_id, reason="abort", usage=failed.usage)
