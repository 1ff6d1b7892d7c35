"""How the usage journal stands on the disk: records of one size, each with a checksum.

    4    CRC-32 of the rest
    1    reason, by its place in REASONS
    3    0
    24   accepted, began, ended: Unix time, as doubles; ended is 0 while the request is open
    8    completion tokens
    8    prompt tokens, cached tokens
    16   digest of the output
    80   request id in UTF-8, filled up with 0

Numbers are little-endian.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from struct import Struct
from typing import get_args
from zlib import crc32

import numpy as np

from loraplex.engine.errors import RequestRefused
from loraplex.engine.journal_protocol import JournalEntry, JournalReason
from loraplex.engine.usage import Usage

REASONS: tuple[JournalReason, ...] = get_args(JournalReason)
DIGEST_BYTES = 16
MAX_ID_BYTES = 80
_CHECK = Struct("<I")
_BODY = Struct(f"<B3xdddQII{DIGEST_BYTES}s{MAX_ID_BYTES}s")
ID_OFFSET = _CHECK.size + _BODY.size - MAX_ID_BYTES
RECORD_BYTES = _CHECK.size + _BODY.size
RECORD = np.dtype(
    [
        ("check", "<u4"),
        ("reason", "u1"),
        ("nothing", "V3"),
        ("accepted_at_s", "<f8"),
        ("began_at_s", "<f8"),
        ("ended_at_s", "<f8"),
        ("completion_tokens", "<u8"),
        ("prompt_tokens", "<u4"),
        ("cached_tokens", "<u4"),
        ("output_digest", f"V{DIGEST_BYTES}"),
        ("request_id", f"S{MAX_ID_BYTES}"),
    ]
)
"""The same, to read many at once."""
DIED = REASONS.index("died")


def output_digest(choices: Iterable[Sequence[int]]) -> bytes:
    """16 bytes that tell whether two outputs have the same token ids: BLAKE2b of the BLAKE2b of
    each choice that has any, in order. A choice's are its ids as 4 bytes each, little-endian."""
    whole = blake2b(digest_size=DIGEST_BYTES)
    for ids in choices:
        if len(ids):
            data = np.asarray(ids, dtype="<u4").tobytes()
            whole.update(blake2b(data, digest_size=DIGEST_BYTES).digest())
    return whole.digest()


def id_bytes(request_id: str) -> bytes:
    """An id as a record has it, but for what fills it up. Raises RequestRefused if it does not fit
    into one."""
    data = request_id.encode()
    if not 0 < len(data) <= MAX_ID_BYTES or b"\0" in data:
        raise RequestRefused(
            f"the request id has {len(data)} bytes; 1 to {MAX_ID_BYTES} without a NUL can be "
            "journaled",
            "request_id",
        )
    return data


def encoded(entry: JournalEntry) -> bytes:
    """One record. Raises RequestRefused for an id that does not fit."""
    body = _BODY.pack(
        REASONS.index(entry.reason),
        entry.accepted_at_s,
        entry.began_at_s,
        entry.ended_at_s or 0.0,
        entry.usage.completion_tokens,
        entry.usage.prompt_tokens,
        entry.usage.cached_tokens,
        entry.output_digest,
        id_bytes(entry.request_id),
    )
    return _CHECK.pack(crc32(body)) + body


def check_of(record: bytes) -> int:
    """The checksum that a record bears."""
    (check,) = _CHECK.unpack_from(record)
    return int(check)


def is_sound(record: bytes) -> bool:
    """False if the bytes are no record, or not all of one, or were changed."""
    return len(record) == RECORD_BYTES and crc32(record[_CHECK.size :]) == check_of(record)


def decoded(record: bytes) -> JournalEntry | None:
    """What was encoded; None if it is not sound."""
    if not is_sound(record):
        return None
    place, accepted, began, ended, completion, prompt, cached, digest, request_id = (
        _BODY.unpack_from(record, _CHECK.size)
    )
    if place >= len(REASONS):
        return None
    reason = REASONS[place]
    is_over = reason not in ("", "died")
    return JournalEntry(
        request_id=request_id.rstrip(b"\0").decode(),
        state="ended" if is_over else "died" if reason else "open",
        usage=Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion),
        reason=reason,
        output_digest=digest if is_over else b"",
        accepted_at_s=accepted,
        began_at_s=began,
        ended_at_s=ended if reason else None,
    )
