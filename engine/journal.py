"""The worker's usage journal: what each request that it took has used, on its disk.

A request is written down before the engine has it, its output before any gateway is sent it, and
its end, so that whatever dies, somebody knows: the journal never has less than was delivered. All
of it outlives the process at once; the disk has it some 50 ms later, for the loss of power. There
is no token's id in it and no text.

A disk that is full or fails stops no request that runs, but the worker takes no others until what
it has to write is written.
"""

import asyncio
import logging
import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from loraplex.engine.errors import JournalUnavailable, RequestRefused
from loraplex.engine.events import Events
from loraplex.engine.journal_format import RECORD_BYTES, encoded, output_digest
from loraplex.engine.journal_log import DAY_S, JournalLog, Reading, remove_old, sync_files
from loraplex.engine.journal_protocol import (
    JournalEntry,
    JournalQuery,
    JournalReason,
    JournalReport,
    JournalTotals,
    JournalTotalsQuery,
)
from loraplex.engine.journal_start import JournalMark, lock_folder, recover
from loraplex.engine.journal_table import OpenTable
from loraplex.engine.protocol import Submit
from loraplex.engine.usage import Usage

_log = logging.getLogger(__name__)

SYNC_INTERVAL_S = 0.05
RETRY_INTERVAL_S = 1.0
RETRY_AFTER_S = 5.0
"""What clients are told while the disk fails."""
MAX_SEGMENT_BYTES = 4 * 1024 * 1024
TABLE = "open.table"
NOTHING = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)


@dataclass(slots=True)
class _Open:
    """A request that has not ended."""

    begun: JournalEntry
    """As it was written when it came; its usage has the whole prompt."""
    slot: int
    choices: dict[int, "array[int]"] = field(default_factory=dict)
    """Token ids by choice, for the digest."""

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.choices.values()))

    def entry(self) -> JournalEntry:
        num_tokens = self.num_tokens
        prompt_tokens = self.begun.usage.prompt_tokens if num_tokens else 0
        usage = Usage(prompt_tokens=prompt_tokens, cached_tokens=0, completion_tokens=num_tokens)
        return structs.replace(self.begun, usage=usage)

    def digest(self) -> bytes:
        return output_digest(self.choices[choice] for choice in sorted(self.choices))


class Journal:
    """Belongs to the thread of one event loop."""

    def __init__(
        self, folder: Path, keep_days: int, max_open: int, clock: Callable[[], float]
    ) -> None:
        """Go on with the journal in a folder: what was open in it has died. `max_open` bounds the
        requests that are open at a time; `clock` gives Unix time.

        Raises JournalInUse if another worker has it open, OSError.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(folder)
        self._folder = folder
        self._keep_s = keep_days * DAY_S
        self._max_open = max_open
        self._clock = clock
        self._log = JournalLog(folder, MAX_SEGMENT_BYTES)
        self._mark: JournalMark = recover(folder, folder / TABLE, self._log, clock())
        self._table = OpenTable(folder / TABLE, max_open)
        self._mark.write(folder)
        self._open: dict[str, _Open] = {}
        self._unsynced: list[tuple[JournalEntry, bytes]] = []
        """Ends that the disk may not have; while it fails, those that it has to be given again."""
        self._damaged_until_s = 0.0
        self._cleaned_ms = 0
        """Beginning of the segment that was the newest when old ones were removed last."""
        self._changed = asyncio.Event()
        self._is_stopping = False
        self.failure = ""
        """Why no request can be taken; empty while they can."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when that becomes or ceases to be empty."""

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    def begin(self, submit: Submit) -> None:
        """Write a request down, before the engine has it.

        Raises JournalUnavailable if that cannot be done, EngineOverloaded if too many are open,
        RequestRefused if its id does not fit or is open.
        """
        if submit.request_id in self._open:
            # Of a gateway that left, whose request has not been aborted yet.
            raise RequestRefused(f"{submit.request_id} is open already", "request_id")
        now = self._clock()
        prompt = Usage(prompt_tokens=len(submit.prompt), cached_tokens=0, completion_tokens=0)
        entry = JournalEntry(
            request_id=submit.request_id,
            state="open",
            usage=prompt,
            reason="",
            output_digest=b"",
            accepted_at_s=submit.accepted_at_s or now,
            began_at_s=now,
            ended_at_s=None,
        )
        if not self.failure:
            try:
                slot = self._table.begin(entry)
            except OSError as error:
                self._fail(error)
            else:
                self._open[submit.request_id] = _Open(entry, slot)
                self._changed.set()
                return
        raise JournalUnavailable(
            "The worker cannot write down what requests use, so it takes none; retry later.",
            RETRY_AFTER_S,
        )

    def note(self, events: Events) -> None:
        """Write down what a step did, before any of it is sent, and give the ends in `events` their
        digests. Others' requests, which did not begin here, are passed over. Raises nothing."""
        open_request, counts = self._open.get, self._table.counts
        for tokens in events.tokens:
            request = open_request(tokens.request_id)
            if request is not None:
                ids = tokens.ids
                try:
                    output = request.choices[tokens.choice]
                except KeyError:
                    output = request.choices[tokens.choice] = array("I")
                for token_id in ids:  # one, as a rule: cheaper than to extend
                    output.append(token_id)
                counts[request.slot] += len(ids)
        if events.tokens:
            self._try(self._table.write_counts)
        if events.finished or events.failed or events.rejected:
            self._note_ends(events)
            self._changed.set()

    async def keep_synced(self) -> None:
        """Bring what is written to the disk, again and again; remove what is old; try again after
        the disk failed. Runs until `stop`."""
        while not self._is_stopping:
            await self._changed.wait()
            await asyncio.sleep(SYNC_INTERVAL_S)
            self._changed.clear()
            await self.sync()
            while self.failure and not self._is_stopping:
                await asyncio.sleep(RETRY_INTERVAL_S)
                await self.retry()

    def stop(self) -> None:
        """End `keep_synced` soon; `close` has the rest."""
        self._is_stopping = True
        self._changed.set()

    async def sync(self) -> None:
        """Return when the disk has all that was written before, or has failed."""
        files, num_ends, table = self._log.files(), len(self._unsynced), self._table
        try:
            await asyncio.to_thread(_sync, self._folder, files, table)
            if self._log.began_ms != self._cleaned_ms:
                await asyncio.to_thread(remove_old, self._folder, self._clock() - self._keep_s)
                self._cleaned_ms = self._log.began_ms
        except OSError as error:
            self._fail(error)
        else:
            self._log.note_synced(files)
            if not self.failure:
                del self._unsynced[:num_ends]

    async def retry(self) -> None:
        """After a failure: if the disk takes as much as is needed, write all anew that it may not
        have, and take requests again."""
        try:
            await asyncio.to_thread(_probe, self._folder, self._max_open)
            self._write_anew()
        except OSError as error:
            _log.debug("the journal's disk still fails: %s", error)
        else:
            self.failure = ""
            self.on_change()
            self._changed.set()
            _log.warning("the usage journal can be written again")

    async def report(self, query: JournalQuery) -> JournalReport:
        """What is known of requests. Raises OSError."""
        known = {entry.request_id: entry for entry, _ in self._unsynced}
        known |= {
            request_id: self._open[request_id].entry()
            for request_id in query.request_ids
            if request_id in self._open
        }
        entries = [known[request_id] for request_id in query.request_ids if request_id in known]
        others = [request_id for request_id in query.request_ids if request_id not in known]
        reading = Reading(self._folder, self._clock())
        entries += await asyncio.to_thread(reading.find, others, query.accepted_from_s)
        since_s = self._since_s(reading)
        return JournalReport(query_id=query.query_id, entries=tuple(entries), since_s=since_s)

    async def totals(self, query: JournalTotalsQuery) -> JournalTotals:
        """Sums by hour. Raises OSError."""
        reading = Reading(self._folder, self._clock())
        hours = await asyncio.to_thread(reading.hours, query.from_s, query.until_s)
        return JournalTotals(query_id=query.query_id, hours=hours, since_s=self._since_s(reading))

    async def close(self) -> None:
        """Bring all to the disk and let another worker go on with it; `keep_synced` has ended."""
        await self.sync()
        if not self.failure:
            structs.replace(self._mark, is_closed=True).write(self._folder)
        self.abandon()

    def abandon(self) -> None:
        """Close the files as they are, as the end of the process does."""
        self._log.close()
        self._table.close()
        os.close(self._lock)

    def _note_ends(self, events: Events) -> None:
        slots: list[int] = []
        num_before = len(self._unsynced)

        def end(request_id: str, reason: JournalReason, usage: Usage) -> bytes:
            request = self._open.pop(request_id, None)
            if request is None:
                return b""
            slots.append(request.slot)
            digest = request.digest()
            entry = structs.replace(
                request.begun,
                state="ended",
                usage=usage,
                reason=reason,
                output_digest=digest,
                ended_at_s=self._clock(),
            )
            self._unsynced.append((entry, encoded(entry)))
            return digest

        events.finished = [
            structs.replace(finished, output_digest=digest)
            if (digest := end(finished.request_id, finished.reason, finished.usage))
            else finished
            for finished in events.finished
        ]
        events.failed = [
            structs.replace(failed, output_digest=digest)
            if (digest := end(failed.request_id, "failed", failed.usage))
            else failed
            for failed in events.failed
        ]
        for rejected in events.rejected:
            end(rejected.request_id, "rejected", NOTHING)
        if slots and not self.failure:
            self._try(lambda: self._write_ends(slots, num_before))

    def _write_ends(self, slots: list[int], num_before: int) -> None:
        records = b"".join(record for _, record in self._unsynced[num_before:])
        self._log.append(records, self._clock())
        for slot in slots:
            self._table.end(slot)

    def _write_anew(self) -> None:
        self._log.begin_segment(self._clock())
        if self._unsynced:
            self._log.append(b"".join(record for _, record in self._unsynced), self._clock())
        begun = [request.begun for request in self._open.values()]
        table = OpenTable(self._folder / TABLE, self._max_open, begun)
        for slot, request in enumerate(self._open.values()):
            request.slot = slot
            table.counts[slot] = request.num_tokens
        self._table.close()
        self._table = table
        table.write_counts()

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if self.failure:
            return
        self.failure = error.strerror or str(error)
        _log.error(
            "the usage journal in %s cannot be written, so no request is taken: %s",
            self._folder,
            error,
        )
        self._changed.set()
        self.on_change()

    def _since_s(self, reading: Reading) -> float:
        self._damaged_until_s = max(self._damaged_until_s, reading.damaged_until_s)
        return max(self._mark.since_s, self._damaged_until_s, self._clock() - self._keep_s)


def _sync(folder: Path, files: Sequence[int], table: OpenTable) -> None:
    table.sync()
    sync_files(folder, files)


def _probe(folder: Path, num_records: int) -> None:
    """See whether the disk takes what a new table and the open requests' ends need."""
    path = folder / "probe"
    try:
        with path.open("wb") as file:
            file.write(bytes(2 * RECORD_BYTES * num_records))
            file.flush()
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)
