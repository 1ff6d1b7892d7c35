"""Messages about a worker's usage journal: what it knows of requests that it took. No torch."""

from typing import Literal

import msgspec

from loraplex.engine.usage import Usage

JournalReason = Literal["", "stop", "length", "abort", "failed", "rejected", "died"]
"""Why a request ended: as its `Finished` says, or `failed` or `rejected` by the engine, or `died`
with the worker; empty while it is open."""


class JournalQuery(msgspec.Struct, frozen=True, tag="journal_query"):
    """Ask what became of requests. Answered by `JournalReport`."""

    query_id: int
    request_ids: tuple[str, ...]
    accepted_from_s: float = 0.0
    """None of them was accepted before, as Unix time; the later, the less has to be read."""


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One request that the worker took, whatever became of it."""

    request_id: str
    state: Literal["open", "ended", "died"]
    """It runs or waits; it ended; or the worker died while it was open."""
    usage: Usage
    """No less than any gateway was sent. Until a request ends, its prompt counts from the first
    token of output on, and nothing is known of what was cached: 0."""
    reason: JournalReason
    output_digest: bytes
    """16 bytes as in `Finished`; empty unless it ended."""
    accepted_at_s: float
    """Of its `Submit`, as Unix time, or when it came to the worker."""
    began_at_s: float
    """When it came to the worker, as Unix time."""
    ended_at_s: float | None
    """None while it is open; of one that died, when the next worker found it."""


class JournalReport(msgspec.Struct, frozen=True, tag="journal_report", kw_only=True):
    """Answer to `JournalQuery`."""

    query_id: int
    entries: tuple[JournalEntry, ...]
    """Of the requests that are known; the others were never taken, if they came after `since_s`."""
    since_s: float
    """From when on nothing is missing, as Unix time: older requests may have been removed, or lost
    with a disk."""


class JournalTotalsQuery(msgspec.Struct, frozen=True, tag="journal_totals_query"):
    """Ask for sums by hour. Answered by `JournalTotals`."""

    query_id: int
    from_s: float
    """Unix time; whole hours that begin from then on."""
    until_s: float
    """…and before this."""


class JournalSum(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of which anything ran."""

    num_requests: int
    usage: Usage


class JournalHour(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were accepted in one hour and are not open any more."""

    start_s: int
    """Unix time, of a whole hour."""
    ended: JournalSum
    died: JournalSum
    """With their worker: no gateway was sent more than this, but one may have been sent less."""


class JournalTotals(msgspec.Struct, frozen=True, tag="journal_totals", kw_only=True):
    """Answer to `JournalTotalsQuery`."""

    query_id: int
    hours: tuple[JournalHour, ...]
    """In order; an hour in which nothing ran is left out."""
    since_s: float
    """As in `JournalReport`."""


class JournalState(msgspec.Struct, frozen=True, tag="journal_state"):
    """Sent when it changes, and to each gateway that connects while it fails."""

    failure: str
    """Why the worker can take no request; empty once it can."""
