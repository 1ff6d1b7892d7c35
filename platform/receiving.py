"""Uploads on their way to disk, in whatever form they come."""

import os
import shutil
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import get_native_id
from typing import Protocol, TypeVar

from loraplex.platform.errors import StorageUnavailable
from loraplex.platform.settings import Settings
from loraplex.platform.threads import in_thread
from loraplex.platform.upload_files import GZIP_TYPE, TAR_TYPE
from loraplex.platform.upload_form import UploadForm
from loraplex.platform.upload_tar import UploadTar

T = TypeVar("T")

ABANDONED_S = 86_400.0
"""No upload takes that long: what is older was left by a process that was killed."""
TAR_TYPES = (TAR_TYPE, GZIP_TYPE)
NICENESS = 10


@dataclass(frozen=True, slots=True)
class Upload:
    """What was received whole: its files lie in a folder that goes when it is left."""

    fields: Mapping[str, str]
    folder: Path


class _Parser(Protocol):
    def feed(self, chunk: bytes) -> None: ...

    def finish(self) -> Mapping[str, str]: ...

    def close(self) -> None: ...


@asynccontextmanager
async def received(
    settings: Settings,
    content_type: str,
    chunks: AsyncIterator[bytes],
    fields: tuple[str, ...] = ("name",),
) -> AsyncIterator[Upload]:
    """Write a form's or an archive's files to disk as they come; `fields` are a form's other parts.

    Raises InvalidRequest, BodyTooLarge, StorageUnavailable. Whatever happens, nothing stays.
    """
    folder = uploads_dir(settings) / uuid.uuid4().hex
    kind = content_type.partition(";")[0].strip().lower()
    parser: _Parser = (
        UploadTar(kind, folder, settings.max_upload_bytes)
        if kind in TAR_TYPES
        else UploadForm(content_type, folder, fields)
    )
    try:
        await on_disk(lambda: folder.mkdir(parents=True))
        async for chunk in chunks:
            await on_disk(lambda chunk=chunk: parser.feed(chunk))  # type: ignore[misc]  # of a default that binds
        yield Upload(parser.finish(), folder)
    finally:
        await in_thread(lambda: _discard(parser, folder))


def uploads_dir(settings: Settings) -> Path:
    """Where files lie that are not stored yet. Gateways that share it share resumable uploads."""
    return settings.data_dir / "uploads"


def remove_abandoned(settings: Settings, now_s: float, open_ids: Set[str] = frozenset()) -> None:
    """Remove what killed processes left of uploads, but for those whose records are open; `now_s`
    is in seconds since the epoch."""
    for folder in uploads_dir(settings).glob("*"):
        if folder.name in open_ids:
            continue
        with suppress(FileNotFoundError):  # another gateway did it
            newest_s = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
            if now_s - newest_s > ABANDONED_S:
                shutil.rmtree(folder, ignore_errors=True)


async def on_disk(work: Callable[[], T]) -> T:
    """Do what reads and writes files. Raises StorageUnavailable where the disk refuses."""
    try:
        return await in_thread(work)
    except OSError as error:
        raise StorageUnavailable(error.strerror or str(error) or type(error).__name__) from error


async def nicely(work: Callable[[], T]) -> T:
    """The same for what takes the processor for long: requests that run go first."""

    def run() -> T:
        # Linux has a niceness for each thread, and this one ends with its work.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)
        return work()

    return await on_disk(run)


def _discard(parser: _Parser, folder: Path) -> None:
    with suppress(OSError):  # what a full disk refused, it refuses again
        parser.close()
    shutil.rmtree(folder, ignore_errors=True)
