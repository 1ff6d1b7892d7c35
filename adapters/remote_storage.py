"""Content-addressed store of adapters behind fsspec, such as an S3 bucket, read through a folder.

A version is `<root>/<ab>/<digest>/` with its files and `version.json`, which is written last: what
has none is not there yet. Concurrent writers of one digest write the same content.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
from fsspec import AbstractFileSystem
from fsspec.callbacks import Callback

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE, Checkpoint
from loraplex.adapters.config_reader import parse
from loraplex.adapters.digest import is_digest
from loraplex.adapters.errors import (
    AdapterCorrupt,
    AdapterMissing,
    CheckpointInvalid,
    TensorFileInvalid,
)
from loraplex.adapters.storage import STORED_FILES, AdapterHead, AdapterStore, check_file
from loraplex.adapters.tensor_file import entries_of, header_bytes

_log = logging.getLogger(__name__)

MANIFEST_FILE = "version.json"
ABANDONED_S = 86_400.0
"""No transfer takes so long: what is older was left by a process that was killed."""
IN_USE_S = 60.0
"""A version that was opened so recently is not removed from the folder: someone may read it."""
PROGRESS_S = 10.0
"""Longer transfers say how far they are so often."""


class Manifest(msgspec.Struct, frozen=True):
    """What `version.json` says, so that it need not be asked of the other files."""

    files: dict[str, int]
    """Name to length in bytes."""


class RemoteStore:
    """Adapters by digest on a file system of fsspec; see `storage.Store`.

    Versions are read in a local folder, to which they come once, verified. Those used longest ago
    leave it while it holds more than `cache_bytes`, except such as were opened a moment ago.
    """

    def __init__(
        self, files: AbstractFileSystem, root: str, cache_dir: Path, cache_bytes: int
    ) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self._cache_dir = cache_dir
        self._cache_bytes = cache_bytes
        self._cache = AdapterStore(cache_dir)
        self._coming: dict[str, Lock] = {}
        self._lock = Lock()

    def put(self, checkpoint: Checkpoint, profile: bytes | None = None) -> Path:
        """See `Store.put`. What is stored are the bytes that were verified in the local folder."""
        digest = checkpoint.digest
        home = self._cache.put(checkpoint, profile)
        with _as_os_errors():
            if self._files.exists(self._path(digest, MANIFEST_FILE)):
                return home
            sizes = {}
            for file in sorted(home.iterdir()):
                sizes[file.name] = file.stat().st_size
                target = self._path(digest, file.name)
                self._files.put_file(str(file), target, callback=TransferLog("stored", target))
            manifest = Manifest(sizes)
            self._files.pipe_file(
                self._path(digest, MANIFEST_FILE), msgspec.json.encode(manifest, order="sorted")
            )
        self._make_room(digest)
        return home

    def open(self, digest: str) -> Path:
        """See `Store.open`; copies it to the local folder if it is not there."""
        if not is_digest(digest):
            raise AdapterMissing(digest)
        with self._alone(digest):
            try:
                home = self._cache.open(digest)
            except AdapterMissing:
                home = self._fetch(digest)
            home.touch()
        return home

    def head(self, digest: str) -> AdapterHead:
        """See `Store.head`; of the tensors' file only the header is asked for."""
        try:
            return self._cache.head(digest)
        except AdapterMissing:
            size = self._manifest(digest).files.get(TENSORS_FILE, 0)
        parsed = parse(self._read(digest, CONFIG_FILE))
        try:
            end = 8 + header_bytes(TENSORS_FILE, self._read(digest, TENSORS_FILE, 0, 8), size)
            header = self._read(digest, TENSORS_FILE, 8, end)
            entries = entries_of(TENSORS_FILE, header, size)
        except TensorFileInvalid as error:
            raise AdapterCorrupt(digest, str(error)) from error
        if parsed.problems:
            raise AdapterCorrupt(digest, "; ".join(map(str, parsed.problems)))
        return AdapterHead(parsed.config, entries)

    def read_file(self, digest: str, name: str, sha256: str) -> bytes:
        """See `Store.read_file`; nothing comes to the local folder."""
        try:
            return self._cache.read_file(digest, name, sha256)
        except AdapterMissing:
            files = self._manifest(digest).files
        if name not in files:
            raise AdapterCorrupt(digest, f"its {name} is gone")
        return check_file(self._read(digest, name), digest, name, sha256)

    def remove(self, digest: str) -> None:
        """See `Store.remove`."""
        if not is_digest(digest):
            return
        self._cache.remove(digest)
        for name in (MANIFEST_FILE, *STORED_FILES):
            with _as_os_errors():
                path = self._path(digest, name)
                if self._files.exists(path):
                    self._files.rm_file(path)

    def _read(
        self, digest: str, name: str, start: int | None = None, end: int | None = None
    ) -> bytes:
        with _as_os_errors():
            data: bytes = self._files.cat_file(self._path(digest, name), start=start, end=end)
        return data

    def _path(self, digest: str, name: str) -> str:
        return f"{self._root}/{digest[:2]}/{digest}/{name}"

    def _manifest(self, digest: str) -> Manifest:
        if not is_digest(digest):
            raise AdapterMissing(digest)
        try:
            with _as_os_errors():
                data = self._files.cat_file(self._path(digest, MANIFEST_FILE))
        except FileNotFoundError:
            raise AdapterMissing(digest) from None
        try:
            manifest = msgspec.json.decode(data, type=Manifest)
        except msgspec.MsgspecError as error:
            raise AdapterCorrupt(digest, f"{MANIFEST_FILE}: {error}") from error
        if not manifest.files.keys() <= set(STORED_FILES):
            raise AdapterCorrupt(digest, f"{MANIFEST_FILE} names files that no version has")
        return manifest

    def _fetch(self, digest: str) -> Path:
        manifest = self._manifest(digest)

        def fill(partial: Path) -> None:
            for name in manifest.files:
                source = self._path(digest, name)
                with _as_os_errors():
                    self._files.get_file(
                        source, str(partial / name), callback=TransferLog("fetched", source)
                    )

        try:
            home = self._cache.add(digest, fill)
        except FileNotFoundError:
            raise AdapterMissing(digest) from None  # it was removed meanwhile
        except CheckpointInvalid as error:
            raise AdapterCorrupt(digest, str(error)) from error
        self._make_room(digest)
        return home

    @contextmanager
    def _alone(self, digest: str) -> Iterator[None]:
        """Let one thread at a time fetch a version: the others find it."""
        with self._lock:
            lock = self._coming.setdefault(digest, Lock())
        try:
            with lock:
                yield
        finally:
            with self._lock:
                if not lock.locked():
                    self._coming.pop(digest, None)

    def _make_room(self, keep: str) -> None:
        """Remove versions from the local folder that were opened longest ago."""
        self._cache.remove_partial(time.time() - ABANDONED_S)
        homes = {}
        for home in self._cache_dir.glob("??/*"):
            try:
                size = sum(file.stat().st_size for file in home.iterdir())
                homes[home] = (home.stat().st_mtime, size)
            except FileNotFoundError:
                continue  # another process removed it
        excess = sum(size for _, size in homes.values()) - self._cache_bytes
        before_s = time.time() - IN_USE_S
        for home, (opened_s, size) in sorted(homes.items(), key=lambda item: item[1]):
            if excess <= 0 or opened_s > before_s:
                return
            if home.name != keep:
                self._cache.remove(home.name)
                excess -= size


class TransferLog(Callback):  # type: ignore[misc]  # fsspec has no types
    """Logs how far a long transfer of one file is."""

    def __init__(self, what: str, path: str) -> None:
        super().__init__()
        self._what, self._path = what, path
        self._told_s = time.monotonic()

    def call(self, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401  fsspec's signature
        """Called by fsspec as bytes move."""
        if time.monotonic() - self._told_s >= PROGRESS_S:
            self._told_s = time.monotonic()
            _log.info("%s %d of %s bytes of %s", self._what, self.value, self.size, self._path)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Drivers raise errors of their own where the network fails."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"the adapters' store does not answer: {error}") from error
