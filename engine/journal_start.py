"""How a worker goes on with the journal of the one before."""

import fcntl
import logging
import os
from pathlib import Path

import msgspec
from msgspec import structs

from loraplex.engine.errors import JournalInUse
from loraplex.engine.journal_format import encoded
from loraplex.engine.journal_log import JournalLog, Reading, segments, sync_files
from loraplex.engine.journal_protocol import JournalEntry
from loraplex.engine.journal_table import read_table

_log = logging.getLogger(__name__)

_MARK = "journal.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class JournalMark(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the journal as a whole."""

    since_s: float
    """Unix time from which on nothing is missing."""
    boot_id: str
    """Of the run of the machine in which it was written: what the kernel had is there while that
    lasts."""
    is_closed: bool
    """True if its worker ended with all of it on the disk."""

    def write(self, folder: Path) -> None:
        """Put it in place of the one before. Raises OSError."""
        new = folder / f"{_MARK}.new"
        with new.open("wb") as file:
            file.write(msgspec.json.encode(self))
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / _MARK)
        sync_files(folder, ())


def lock_folder(folder: Path) -> int:
    """Keep other workers out until the returned file is closed, or this process ends. Raises
    JournalInUse, OSError."""
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise JournalInUse(
            f"another worker keeps its journal in {folder}: give each its own "
            "LORAPLEX_JOURNAL_DIR or LORAPLEX_DATA_DIR"
        ) from None
    return file


def recover(folder: Path, table: Path, log: JournalLog, now: float) -> JournalMark:
    """End what was open when the last worker ended, and tell from when on nothing is missing.

    Files that were cut or changed are logged, and as much of them is used as can be. Raises
    OSError.
    """
    reading = Reading(folder, now)
    for newest in segments(folder)[-1:]:
        reading.check(newest)
    were_open, is_whole = read_table(table)
    if not is_whole:
        _log.error("%s was cut or changed; requests that were open may be missing", table)
    died = _died(were_open, reading, now)
    if died:
        log.append(b"".join(map(encoded, died)), now)
        sync_files(folder, log.files())
        _log.warning("%d requests were open when the last worker died", len(died))
    mark, boot_id = _read_mark(folder), _boot_id()
    is_kept = mark is not None and (mark.is_closed or mark.boot_id == boot_id != "")
    if mark is not None and is_kept and is_whole and not reading.damaged_until_s:
        return JournalMark(since_s=mark.since_s, boot_id=boot_id, is_closed=False)
    return JournalMark(since_s=now, boot_id=boot_id, is_closed=False)


def _died(were_open: list[JournalEntry], reading: Reading, now: float) -> list[JournalEntry]:
    """Those whose end was not written. An end and the slot that it frees are two writes."""
    ids = [entry.request_id for entry in were_open]
    from_s = min((entry.began_at_s for entry in were_open), default=0.0)
    ended = {(end.request_id, end.began_at_s) for end in reading.find(ids, from_s)}
    return [
        structs.replace(entry, state="died", reason="died", ended_at_s=now)
        for entry in were_open
        if (entry.request_id, entry.began_at_s) not in ended
    ]


def _read_mark(folder: Path) -> JournalMark | None:
    path = folder / _MARK
    try:
        return msgspec.json.decode(path.read_bytes(), type=JournalMark)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        _log.error("%s cannot be read: %s", path, error)
        return None


def _boot_id() -> str:
    """Empty where the system tells none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
