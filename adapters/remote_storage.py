"""Content-addressed store of adapters behind fsspec, such as an S3 bucket, read through a folder.

A version is `<root>/<ab>/<digest>/version.json`, which names a folder beside it with the version's
files. Each writer writes a folder of its own and then `version.json`; who removes a version removes
`version.json` first and then the folder that it named. So a folder that is named is whole, whoever
writes, removes or dies meanwhile; what nobody names is swept when it is old.
"""

import logging
import re
import time
import uuid
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
_FOLDER = re.compile("[0-9a-f]{32}")
ABANDONED_S = 86_400.0
"""No transfer takes so long: what is older was left by a process that was killed."""
IN_USE_S = 60.0
"""A version that was opened so recently is not removed from the folder: someone may read it."""
PROGRESS_S = 10.0
"""Longer transfers say how far they are so often."""


class Manifest(msgspec.Struct, frozen=True):
    """What `version.json` says."""

    folder: str
    """In which the files are."""
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
            if self._is_whole(digest):
                return home
            sizes, folder = {}, uuid.uuid4().hex
            for file in sorted(home.iterdir()):
                sizes[file.name] = file.stat().st_size
                target = self._path(digest, folder, file.name)
                self._files.put_file(str(file), target, callback=TransferLog("stored", target))
            manifest = Manifest(folder, sizes)
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
            manifest = self._manifest(digest)
        size = manifest.files.get(TENSORS_FILE, 0)
        config, tensors = (
            self._path(digest, manifest.folder, name) for name in (CONFIG_FILE, TENSORS_FILE)
        )
        try:
            parsed = parse(self._read(config))
            end = 8 + header_bytes(TENSORS_FILE, self._read(tensors, 0, 8), size)
            entries = entries_of(TENSORS_FILE, self._read(tensors, 8, end), size)
        except FileNotFoundError:
            raise AdapterMissing(digest) from None  # it was removed meanwhile
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
            manifest = self._manifest(digest)
        if name not in manifest.files:
            raise AdapterCorrupt(digest, f"its {name} is gone")
        data = self._read(self._path(digest, manifest.folder, name))
        return check_file(data, digest, name, sha256)

    def remove(self, digest: str) -> None:
        """See `Store.remove`."""
        if not is_digest(digest):
            return
        self._cache.remove(digest)
        try:
            manifest = self._manifest(digest)
        except AdapterMissing:
            return
        except AdapterCorrupt:
            manifest = Manifest("", {})  # what it meant to name is swept later
        self._remove_file(self._path(digest, MANIFEST_FILE))
        for name in manifest.files:
            self._remove_file(self._path(digest, manifest.folder, name))

    def stored(self, before_s: float) -> list[str]:
        """See `Store.stored`."""
        return [
            digest
            for digest, paths in self._homes().items()
            if self._path(digest, MANIFEST_FILE) in paths
            and self._is_older(self._path(digest, MANIFEST_FILE), before_s)
        ]

    def remove_partial(self, before_s: float) -> None:
        """See `Store.remove_partial`: also files that no `version.json` names."""
        self._cache.remove_partial(before_s)
        for digest, paths in self._homes().items():
            old = [path for path in paths if self._is_older(path, before_s)]
            try:
                # Read after the files were listed: a folder that is named later is not among them,
                # or it took longer to write than `before_s` lets any.
                named = {self._path(digest, MANIFEST_FILE)}
                named.add(self._path(digest, self._manifest(digest).folder))
            except AdapterMissing:
                pass
            except AdapterCorrupt:
                continue  # for a person to look at
            for path in old:
                if path not in named and path.rpartition("/")[0] not in named:
                    self._remove_file(path)

    def _homes(self) -> dict[str, list[str]]:
        """The paths of all files by the digest that they belong to."""
        with _as_os_errors():
            try:
                paths = self._files.find(self._root)
            except FileNotFoundError:
                return {}  # nothing was ever stored
        homes: dict[str, list[str]] = {}
        for path in paths:
            _, *home = path.removeprefix(self._root).split("/")
            if len(home) > 2 and is_digest(home[1]) and home[0] == home[1][:2]:
                homes.setdefault(home[1], []).append(path)
        return homes

    def _is_older(self, path: str, before_s: float) -> bool:
        with _as_os_errors():
            try:
                modified = self._files.modified(path)
            except FileNotFoundError:
                return False  # it was removed meanwhile
        return bool(modified.timestamp() < before_s)

    def _is_whole(self, digest: str) -> bool:
        """True if a version is there, with all its files at their lengths."""
        try:
            manifest = self._manifest(digest)
        except (AdapterMissing, AdapterCorrupt):
            return False
        try:
            return bool(manifest.files) and all(
                self._files.size(self._path(digest, manifest.folder, name)) == size
                for name, size in manifest.files.items()
            )
        except FileNotFoundError:
            return False

    def _remove_file(self, path: str) -> None:
        with _as_os_errors():
            if self._files.exists(path):
                self._files.rm_file(path)

    def _read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        with _as_os_errors():
            data: bytes = self._files.cat_file(path, start=start, end=end)
        return data

    def _path(self, digest: str, *names: str) -> str:
        return "/".join((self._root, digest[:2], digest, *names))

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
        if not _FOLDER.fullmatch(manifest.folder):
            raise AdapterCorrupt(digest, f"{MANIFEST_FILE} names a folder that no version has")
        return manifest

    def _fetch(self, digest: str) -> Path:
        manifest = self._manifest(digest)

        def fill(partial: Path) -> None:
            for name in manifest.files:
                source = self._path(digest, manifest.folder, name)
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
