"""Requests that have ended, on the disk: segments to which records are appended.

A segment is a file `usage-<ms since 1970>.log`: 8 bytes of magic, then records (`journal_format`).
Another one is begun when it is full, on another day (UTC), by each run of the worker, and after
the disk failed, so that nothing is ever written behind a record that is not whole. What does not
fit at a segment's end was cut off as it was written; nobody was told of it.
"""

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loraplex.engine.journal_format import DIED, ID_OFFSET, RECORD, RECORD_BYTES, decoded, is_sound
from loraplex.engine.journal_protocol import JournalEntry, JournalHour, JournalSum
from loraplex.engine.usage import Usage

_log = logging.getLogger(__name__)

Ints = NDArray[np.int64]

_MAGIC = b"LPXUSE1\n"
DAY_S, HOUR_S = 86_400, 3_600
SKEW_S = 3_600.0
"""How far a gateway's clock may be from the worker's, so that no segment is passed over for it."""


class Segment:
    """One file of records; `until_s` is when the next one was begun."""

    def __init__(self, path: Path, until_s: float) -> None:
        self.path = path
        self.began_s = _began_ms(path) / 1e3
        self.until_s = until_s

    def read(self) -> list[bytes]:
        """Its records, whole but perhaps damaged; none if it has been removed or is no segment."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        if not data.startswith(_MAGIC):
            if not _MAGIC.startswith(data):
                _log.error("%s is no part of a journal; it is passed over", self.path)
            return []
        end = len(data) - (len(data) - len(_MAGIC)) % RECORD_BYTES
        return [data[at : at + RECORD_BYTES] for at in range(len(_MAGIC), end, RECORD_BYTES)]


class JournalLog:
    """Appends; `Reading` reads. Belongs to one thread."""

    def __init__(self, folder: Path, max_segment_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_segment_bytes
        self._file: int | None = None
        self.began_ms = 0
        """Of the newest segment, since 1970."""
        self._num_bytes = 0
        self._retired: list[int] = []
        """Files to which nothing is added any more, but that the disk may not have yet."""

    def append(self, records: bytes, now: float) -> None:
        """Add whole records. Raises OSError, and then some of them may be there or not."""
        is_full = self._num_bytes >= self._max_bytes
        if self._file is None or is_full or now // DAY_S != self.began_ms / 1e3 // DAY_S:
            self.begin_segment(now)
        assert self._file is not None
        try:
            _write(self._file, records)
        except OSError:
            self._retire()
            raise
        self._num_bytes += len(records)

    def begin_segment(self, now: float) -> None:
        """Add no more to the newest one. Raises OSError."""
        self._retire()
        self.began_ms = max(int(now * 1e3), self._newest_ms() + 1)
        path = self._folder / f"usage-{self.began_ms:013d}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            _write(file, _MAGIC)
        except OSError:
            os.close(file)
            path.unlink()
            raise
        self._file, self._num_bytes = file, len(_MAGIC)

    def files(self) -> list[int]:
        """Files that `sync_files` is to be called with; nothing else closes them."""
        return self._retired + ([] if self._file is None else [self._file])

    def note_synced(self, files: Sequence[int]) -> None:
        """The disk has these."""
        for file in [file for file in self._retired if file in files]:
            self._retired.remove(file)
            os.close(file)

    def close(self) -> None:
        """Close all files."""
        for file in self.files():
            os.close(file)
        self._retired, self._file = [], None

    def _retire(self) -> None:
        if self._file is not None:
            self._retired.append(self._file)
            self._file = None

    def _newest_ms(self) -> int:
        return max((_began_ms(path) for path in self._folder.glob("usage-*.log")), default=0)


def _write(file: int, data: bytes) -> None:
    """Raises OSError, by the second call if the disk takes but a part in the first."""
    while data:
        data = data[os.write(file, data) :]


def sync_files(folder: Path, files: Sequence[int]) -> None:
    """Wait until the disk has what was appended, and the files' names. Raises OSError."""
    for file in files:
        os.fdatasync(file)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def segments(folder: Path) -> list[Segment]:
    """All of them, the oldest first."""
    paths = sorted(path for path in folder.glob("usage-*.log") if _began_ms(path))
    until = [_began_ms(path) / 1e3 for path in paths[1:]] + [float("inf")]
    return [Segment(path, end) for path, end in zip(paths, until, strict=False)]


def remove_old(folder: Path, before_s: float) -> None:
    """Remove segments all of whose requests ended before. Raises OSError."""
    for segment in segments(folder):
        if segment.until_s < before_s:
            segment.path.unlink(missing_ok=True)


class Reading:
    """One look into the segments; safe from any thread, while others write."""

    def __init__(self, folder: Path, now: float) -> None:
        self._folder = folder
        self._now = now
        self.damaged_until_s = 0.0
        """Unix time before which a record that was damaged may have ended."""

    def find(self, request_ids: Collection[str], accepted_from_s: float) -> list[JournalEntry]:
        """The newest record of each of these requests that has any, if they were accepted from then
        on. Raises OSError."""
        wanted = {request_id.encode() for request_id in request_ids}
        found: dict[str, JournalEntry] = {}
        for segment in reversed(segments(self._folder)):
            if not wanted or segment.until_s < accepted_from_s - SKEW_S:
                break
            here: dict[bytes, JournalEntry] = {}
            for record in self._sound(segment):
                if (key := record[ID_OFFSET:].rstrip(b"\0")) in wanted:
                    entry = decoded(record)
                    if entry is not None:
                        here[key] = entry
            wanted -= here.keys()
            found |= {entry.request_id: entry for entry in here.values()}
        return list(found.values())

    def hours(self, from_s: float, until_s: float) -> tuple[JournalHour, ...]:
        """Sums of what was accepted in hours that begin in this time. Raises OSError."""
        sums: dict[int, dict[bool, Ints]] = {}
        for records in self._records(from_s):
            starts = records["accepted_at_s"] // HOUR_S * HOUR_S
            counts = (from_s <= starts) & (starts < until_s)
            counts &= records["prompt_tokens"] + records["completion_tokens"] > 0
            for start in np.unique(starts[counts]):
                hour = sums.setdefault(int(start), {False: _nothing(), True: _nothing()})
                for is_died in hour:
                    is_it = counts & (starts == start) & ((records["reason"] == DIED) == is_died)
                    hour[is_died] += _parts(records[is_it])
        return tuple(
            JournalHour(start_s=start, ended=_sum(hour[False]), died=_sum(hour[True]))
            for start, hour in sorted(sums.items())
        )

    def check(self, segment: Segment) -> None:
        """Look for damaged records. Raises OSError."""
        self._sound(segment)

    def _records(self, from_s: float) -> Iterator[NDArray[np.void]]:
        """Of `RECORD`, each once: what a failing disk may have kept was written again to the next
        segment."""
        before: set[bytes] = set()
        for segment in segments(self._folder):
            if segment.until_s >= from_s - SKEW_S:
                records = set(self._sound(segment))
                yield np.frombuffer(b"".join(records - before), RECORD)
                before = records

    def _sound(self, segment: Segment) -> list[bytes]:
        records = segment.read()
        sound = [record for record in records if is_sound(record)]
        if len(sound) < len(records):
            _log.error(
                "%s has %d damaged records; they are passed over",
                segment.path,
                len(records) - len(sound),
            )
            self.damaged_until_s = max(self.damaged_until_s, min(segment.until_s, self._now))
        return sound


def _nothing() -> Ints:
    return np.zeros(4, np.int64)


def _parts(records: NDArray[np.void]) -> Ints:
    fields = ("prompt_tokens", "cached_tokens", "completion_tokens")
    return np.array([len(records), *(records[field].sum() for field in fields)], np.int64)


def _sum(parts: Ints) -> JournalSum:
    num, prompt, cached, completion = parts.tolist()
    usage = Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)
    return JournalSum(num_requests=num, usage=usage)


def _began_ms(path: Path) -> int:
    digits = path.stem.removeprefix("usage-")
    return int(digits) if digits.isascii() and digits.isdecimal() else 0
