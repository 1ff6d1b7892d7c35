"""The open requests of a worker on the disk, with how much output each has: a table that is
overwritten in place, so that a step costs one small write however many requests run.

    16                 magic, number of slots, CRC-32 of both
    8 × slots          counts: of slot i its output tokens, and a check that ties them to its record
    record × slots     who has slot i (`journal_format`), as it began; zeros while nobody has it

What was written stays when the process is killed, since the kernel has it. A count is one aligned
word, which is there as a whole or not at all; its check fails with another request's record, so
that after a loss of power no slot shows its former request's count.
"""

import os
from array import array
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from pathlib import Path
from struct import Struct
from zlib import crc32

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from loraplex.engine.errors import EngineOverloaded
from loraplex.engine.journal_format import RECORD_BYTES, check_of, decoded, encoded
from loraplex.engine.journal_protocol import JournalEntry
from loraplex.engine.usage import Usage

_HEADER = Struct("<8sII")
_MAGIC = b"LPXOPEN1"
_COUNT_BYTES = 8
_SPREAD = 0x9E3779B1
"""Odd: different counts get different checks."""
_LOW = 0xFFFFFFFF
_NOBODY = bytes(RECORD_BYTES)


class OpenTable:
    """One table, and who has its slots. Belongs to one thread but for `sync`."""

    def __init__(self, path: Path, num_slots: int, entries: Sequence[JournalEntry] = ()) -> None:
        """Make one in place of what is there, its room on the disk taken; `entries` get the first
        slots, in order. Raises EngineOverloaded if there are too few, OSError; then what was there
        is still there."""
        self._num_slots = num_slots
        self._records_at = _HEADER.size + _COUNT_BYTES * num_slots
        self._free = list(range(num_slots))
        heapify(self._free)
        self._top = 0
        """Slots from here on are free."""
        self.counts = array("Q", bytes(_COUNT_BYTES * num_slots))
        """Output tokens, by slot; written by `write_counts`."""
        self._checks = array("Q", bytes(_COUNT_BYTES * num_slots))
        self._is_used = bytearray(num_slots)
        new = path.with_suffix(".new")
        self._file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._file, 0, self._records_at + RECORD_BYTES * num_slots)
            os.pwrite(self._file, _header(num_slots), 0)
            for entry in entries:
                self.begin(entry)
            self.write_counts()
            os.fsync(self._file)
            new.replace(path)
        except (OSError, EngineOverloaded):
            os.close(self._file)
            raise

    def begin(self, entry: JournalEntry) -> int:
        """Write a request down, as it came, and return its slot. Raises EngineOverloaded if there
        is none, RequestRefused for an id that does not fit, OSError."""
        if not self._free:
            raise EngineOverloaded(f"{self._num_slots} requests are open already", 1.0)
        record = encoded(entry)
        slot = self._free[0]
        os.pwrite(self._file, record, self._records_at + RECORD_BYTES * slot)
        heappop(self._free)
        self._checks[slot] = check_of(record)
        self._is_used[slot] = True
        self._top = max(self._top, slot + 1)
        return slot

    def write_counts(self) -> None:
        """Write `counts` down. Raises OSError."""
        counts = np.frombuffer(self.counts, np.uint64, self._top)
        checks = np.frombuffer(self._checks, np.uint64, self._top)
        os.pwrite(self._file, _words(counts, checks), _HEADER.size)

    def end(self, slot: int) -> None:
        """The request's end is written elsewhere: its slot is nobody's. Raises OSError, and then
        the slot is not used again."""
        os.pwrite(self._file, _NOBODY, self._records_at + RECORD_BYTES * slot)
        self.counts[slot] = self._is_used[slot] = 0
        heappush(self._free, slot)
        while self._top and not self._is_used[self._top - 1]:
            self._top -= 1

    def sync(self) -> None:
        """Wait until the disk has it. Raises OSError. Safe from any thread."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_table(path: Path) -> tuple[list[JournalEntry], bool]:
    """The requests that were open, with their counts; and False if some may be missing, for the
    file was cut or changed. No file is an empty table. Raises OSError."""
    if not path.exists():
        return [], True
    data = path.read_bytes()
    num_slots = _num_slots(data)
    if num_slots is None:
        return [], False
    records_at = _HEADER.size + _COUNT_BYTES * num_slots
    entries = []
    is_whole = len(data) == records_at + RECORD_BYTES * num_slots
    for slot in range(num_slots):
        at = records_at + RECORD_BYTES * slot
        record = data[at : at + RECORD_BYTES]
        if record == _NOBODY:
            continue
        entry = decoded(record)
        if entry is None or entry.state != "open":
            is_whole = False
            continue
        at = _HEADER.size + _COUNT_BYTES * slot
        count = _count(data[at : at + _COUNT_BYTES], check_of(record))
        entries.append(_with_count(entry, count))
    return entries, is_whole


def _header(num_slots: int) -> bytes:
    start = _MAGIC + num_slots.to_bytes(4, "little")
    return start + crc32(start).to_bytes(4, "little")


def _num_slots(data: bytes) -> int | None:
    if len(data) < _HEADER.size:
        return None
    _, num_slots, _ = _HEADER.unpack_from(data)
    return num_slots if data[: _HEADER.size] == _header(num_slots) else None


def _words(counts: NDArray[np.uint64], checks: NDArray[np.uint64]) -> bytes:
    low = np.uint64(_LOW)
    tied = (checks ^ (counts * np.uint64(_SPREAD))) & low
    return ((tied << np.uint64(32)) | (counts & low)).astype("<u8").tobytes()


def _count(word: bytes, check: int) -> int:
    """The count of a word that belongs to the record with this checksum; 0 if it does not: nothing
    was counted yet."""
    value = int.from_bytes(word, "little")
    count = value & _LOW
    return count if value >> 32 == (check ^ (count * _SPREAD)) & _LOW else 0


def _with_count(entry: JournalEntry, num_tokens: int) -> JournalEntry:
    usage = Usage(
        prompt_tokens=entry.usage.prompt_tokens if num_tokens else 0,
        cached_tokens=0,
        completion_tokens=num_tokens,
    )
    return structs.replace(entry, usage=usage)
