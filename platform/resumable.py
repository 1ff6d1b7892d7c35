"""Uploads in several requests: files are announced, come in pieces, and are checked when all is
there. What has come is what lies on disk, so a gateway that was killed goes on, and gateways that
share a data directory share these uploads."""

import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO

from loraplex.adapters.errors import CheckpointInvalid
from loraplex.adapters.registry import uploads
from loraplex.adapters.registry.errors import UploadConflict, UploadNotFound
from loraplex.adapters.registry.registry import PublishedVersion
from loraplex.adapters.registry.uploads import NewUpload, UploadRecord
from loraplex.platform.errors import (
    BodyTooLarge,
    InvalidRequest,
    TooManyUploads,
    UploadOffsetMismatch,
)
from loraplex.platform.receiving import on_disk, remove_abandoned, uploads_dir
from loraplex.platform.services import Resources
from loraplex.platform.upload_files import ADAPTER_FILES, check_files
from loraplex.platform.uploads import Begun, check_name, publish
from loraplex.tenants import audit
from loraplex.tenants.audit import Actor
from loraplex.tenants.ids import new_id

CHECK_S = 900.0
"""A check that began so long ago died with its gateway; the upload may be completed again."""
RECEIVED_DIR = "files"


@dataclass(frozen=True, slots=True)
class UploadProgress:
    """An upload, and how much of it is there."""

    record: UploadRecord
    offsets: Mapping[str, int]
    """Bytes of each file that have come; of one that is over, all."""


async def begin(
    resources: Resources,
    tenant_id: str,
    name: str,
    files: Mapping[str, int],
    sha256: Mapping[str, str],
) -> UploadProgress:
    """Announce an upload: the files of an adapter, their lengths in bytes, and of those that have
    one in `sha256`, in hexadecimal, what is compared when all is there.

    Raises InvalidRequest, BodyTooLarge, TooManyUploads, StorageUnavailable.
    """
    check_name(name)
    _check_announced(files, resources.settings.max_upload_bytes)
    await expire(resources)
    now = resources.now()
    new = NewUpload(new_id("upl", now, resources.entropy), name, files, sha256=sha256)
    folder = _folder(resources, new.id)
    await on_disk(lambda: (folder / RECEIVED_DIR).mkdir(parents=True))
    try:
        async with resources.database.session() as session:
            open_ones = await uploads.lock_uploading(session, tenant_id)
            _check_open(
                resources, [*(sum(u.files.values()) for u in open_ones), sum(files.values())]
            )
            await uploads.add(session, tenant_id, new, "uploading", now)
            record = await uploads.get(session, tenant_id, new.id)
    except BaseException:
        await on_disk(lambda: shutil.rmtree(folder, ignore_errors=True))
        raise
    return UploadProgress(record, dict.fromkeys(files, 0))


async def look(resources: Resources, tenant_id: str, upload_id: str) -> UploadProgress:
    """How an upload stands. Raises UploadNotFound."""
    async with resources.database.reader() as session:
        record = await uploads.get(session, tenant_id, upload_id)
    return await progress_of(resources, record)


async def progress_of(resources: Resources, record: UploadRecord) -> UploadProgress:
    """How much of an upload is there."""
    if record.status != "uploading":
        return UploadProgress(record, record.files if record.status != "cancelled" else {})
    folder = _folder(resources, record.id) / RECEIVED_DIR
    offsets = await on_disk(lambda: {name: _size(folder / name) for name in record.files})
    return UploadProgress(record, offsets)


async def append(
    resources: Resources,
    tenant_id: str,
    piece: "Piece",
    chunks: AsyncIterator[bytes],
) -> int:
    """Add bytes to a file, from `piece.offset` on; return how many it has then. What came before a
    connection broke stays.

    Raises UploadNotFound, UploadConflict if it takes none any more or another request writes the
    file now, UploadOffsetMismatch, BodyTooLarge if more come than were announced,
    TooManyUploads, StorageUnavailable.
    """
    record = (await look(resources, tenant_id, piece.upload_id)).record
    if piece.file not in record.files:
        raise UploadNotFound(f"The upload has no file {piece.file[:60]!r}.")
    if record.status != "uploading":
        raise UploadConflict(f"The upload is {record.status}; it takes no more bytes.")
    length = record.files[piece.file]
    path = _folder(resources, record.id) / RECEIVED_DIR / piece.file
    with resources.upload_slots.taken(tenant_id):
        file = await on_disk(lambda: _open(path, piece.offset))
        try:
            size = await _write(file, piece.offset, length, chunks)
        finally:
            await on_disk(lambda: _close(file))
    async with resources.database.session() as session:
        await uploads.touch(session, record.id, resources.now())
    return size


@dataclass(frozen=True, slots=True)
class Piece:
    """Where bytes belong."""

    upload_id: str
    file: str
    offset: int


async def complete(
    resources: Resources, tenant_id: str, upload_id: str, actor: Actor = audit.PLATFORM
) -> UploadRecord:
    """Check and publish an upload whose bytes are all there; again, it says the same.

    Raises UploadNotFound, UploadConflict while it is being checked or if it is cancelled,
    UploadOffsetMismatch if bytes are missing, and as `publish` does, CheckpointInvalid each time.
    """
    progress = await look(resources, tenant_id, upload_id)
    record, now = progress.record, resources.now()
    if record.status == "rejected":
        raise CheckpointInvalid(record.problems)
    if record.status == "ready":
        return record
    for name, length in record.files.items():
        if record.status == "uploading" and progress.offsets[name] != length:
            raise UploadOffsetMismatch(
                f"{name} is not whole: {length} bytes were announced.", progress.offsets[name]
            )
    async with resources.database.session() as session:
        stale_before = now - timedelta(seconds=CHECK_S)
        if not await uploads.claim(session, tenant_id, record.id, now, stale_before):
            status = (await uploads.get(session, tenant_id, record.id)).status
            raise UploadConflict(f"The upload is {status}; ask again what came of it.")
    await _publish(resources, tenant_id, record, actor)
    return (await look(resources, tenant_id, upload_id)).record


async def cancel(resources: Resources, tenant_id: str, upload_id: str) -> None:
    """Give an upload up; its bytes go. Raises UploadNotFound, UploadConflict if it is over."""
    async with resources.database.session() as session:
        await uploads.cancel(session, tenant_id, upload_id, resources.now())
    await _remove(resources, upload_id)


async def expire(resources: Resources) -> None:
    """Cancel uploads to which nothing came for long."""
    now, settings = resources.now(), resources.settings
    # Bytes are noted when a request's last one came, which may take so long.
    patience_s = max(CHECK_S, settings.upload_timeout_s, settings.upload_expiry_s)
    before = now - timedelta(seconds=patience_s)
    async with resources.database.session() as session:
        expired = await uploads.expire(session, before, now)
    for upload_id in expired:
        await _remove(resources, upload_id)


async def tidy(resources: Resources) -> None:
    """Expire uploads, and remove what killed processes left of any kind of upload."""
    await expire(resources)
    async with resources.database.reader() as session:
        open_ids = await uploads.open_ids(session)
    settings, now_s = resources.settings, resources.clock()
    await on_disk(lambda: remove_abandoned(settings, now_s, open_ids))


async def _publish(
    resources: Resources, tenant_id: str, record: UploadRecord, actor: Actor
) -> PublishedVersion:
    folder = _folder(resources, record.id) / RECEIVED_DIR
    begun = Begun(record.id, "uploading", record.sha256)
    try:
        version = await publish(resources, tenant_id, record.name, folder, actor, begun)
    except CheckpointInvalid:
        await _remove(resources, record.id)
        raise
    await _remove(resources, record.id)
    return version


def _check_announced(files: Mapping[str, int], max_bytes: int) -> None:
    for name, length in files.items():
        if name not in ADAPTER_FILES:
            raise InvalidRequest(
                f"files has {name[:60]!r}; an adapter has {', '.join(ADAPTER_FILES)}.",
                "files",
                "unknown_parameter",
            )
        if length < 1:
            raise InvalidRequest(f"files.{name} is {length}; no file is empty.", f"files.{name}")
    check_files(files.keys())
    if sum(files.values()) > max_bytes:
        raise BodyTooLarge(max_bytes)


def _check_open(resources: Resources, sizes: list[int]) -> None:
    settings = resources.settings
    if len(sizes) > settings.max_tenant_uploads:
        raise TooManyUploads(
            f"{settings.max_tenant_uploads} uploads of yours are open; complete or cancel one."
        )
    if len(sizes) > 1 and sum(sizes) > settings.max_tenant_upload_bytes:
        raise TooManyUploads(
            f"Your open uploads have {sum(sizes)} bytes together; at most "
            f"{settings.max_tenant_upload_bytes} are possible. Complete or cancel one."
        )


def _folder(resources: Resources, upload_id: str) -> Path:
    return uploads_dir(resources.settings) / upload_id


async def _remove(resources: Resources, upload_id: str) -> None:
    folder = _folder(resources, upload_id)
    await on_disk(lambda: shutil.rmtree(folder, ignore_errors=True))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _open(path: Path, offset: int) -> IO[bytes]:
    """The file, locked against others who would write it, wherever they run."""
    try:
        file = path.open("ab")
    except FileNotFoundError:
        raise UploadConflict("The upload takes no more bytes.") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UploadConflict(f"Another request writes {path.name} now.") from None
    size = os.fstat(file.fileno()).st_size
    if size != offset:
        file.close()
        raise UploadOffsetMismatch(f"Upload-Offset is {offset}.", size)
    return file


async def _write(file: IO[bytes], offset: int, length: int, chunks: AsyncIterator[bytes]) -> int:
    size = offset
    async for chunk in chunks:
        if size + len(chunk) > length:
            raise BodyTooLarge(
                length,
                f"{Path(file.name).name} was announced with {length} bytes and has {size}; "
                f"{length - size} may follow.",
            )
        await on_disk(lambda chunk=chunk: file.write(chunk))  # type: ignore[misc]  # of a default that binds
        size += len(chunk)
    return size


def _close(file: IO[bytes]) -> None:
    """What is said to be there must survive a power cut."""
    with file:
        file.flush()
        with suppress(OSError):
            os.fsync(file.fileno())
