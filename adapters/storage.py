"""Content-addressed store of adapters in one folder: `<root>/<ab>/<digest>/`, a few files each.

A version never changes once it is there. It appears whole or not at all, whoever crashes or races.
"""

import errno
import hashlib
import logging
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from loraplex.adapters.checkpoint import (
    CONFIG_FILE,
    TENSORS_FILE,
    Checkpoint,
    compute_digest,
    read_config,
    read_profile,
)
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.digest import is_digest
from loraplex.adapters.errors import (
    AdapterCorrupt,
    AdapterMissing,
    CheckpointInvalid,
    TensorFileInvalid,
)
from loraplex.adapters.profile import PROFILE_FILE, TOKENIZER_FILE, Profile, decode
from loraplex.adapters.tensor_file import TensorEntry, read_entries

_log = logging.getLogger(__name__)

STORED_FILES = (CONFIG_FILE, TENSORS_FILE, PROFILE_FILE, TOKENIZER_FILE)
"""All that a version may have; the first two each has."""


@dataclass(frozen=True, slots=True)
class AdapterHead:
    """What of a version is told without its tensors' bytes."""

    config: AdapterConfig
    entries: tuple[TensorEntry, ...]


class Store(Protocol):
    """Adapter versions by digest; `AdapterStore` in a folder, `RemoteStore` elsewhere. Every method
    blocks, and raises OSError where the store cannot be used."""

    def put(self, checkpoint: Checkpoint, profile: bytes | None = None) -> Path:
        """Store a checked checkpoint and what is kept of its profile, under the checkpoint's
        digest; return a folder with its files. One that is there already is left alone.

        Raises:
            AdapterCorrupt: the files changed after they were checked.
            CheckpointInvalid: they changed into something that is no adapter.
        """

    def open(self, digest: str) -> Path:
        """Folder with a version's files; AdapterMissing if there is none, AdapterCorrupt if what
        came from elsewhere is not what was stored."""

    def head(self, digest: str) -> AdapterHead:
        """Config and header of a version, without reading its tensors. Raises as `open` does, and
        AdapterCorrupt where they cannot be read."""

    def read_file(self, digest: str, name: str, sha256: str) -> bytes:
        """One small file of a version, without the others. Raises as `open` does, and
        AdapterCorrupt if it is not there or has another SHA-256."""

    def remove(self, digest: str) -> None:
        """Forget a version; one that is not there is no error. Who reads it reads on."""

    def stored(self, before_s: float) -> list[str]:
        """Digests of the versions that were stored before then, in seconds since the epoch."""

    def remove_partial(self, before_s: float) -> None:
        """Remove what killed processes left before then of versions that came or went."""


class AdapterStore:
    """Adapters by digest in a folder. Any number of processes may use one root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, checkpoint: Checkpoint, profile: bytes | None = None) -> Path:
        """See `Store.put`."""

        def fill(partial: Path) -> None:
            for name in (CONFIG_FILE, TENSORS_FILE):
                shutil.copyfile(checkpoint.directory / name, partial / name)
            if profile is not None:
                (partial / PROFILE_FILE).write_bytes(profile)
            if decode(profile).tokenizer_sha256 is not None:
                shutil.copyfile(checkpoint.directory / TOKENIZER_FILE, partial / TOKENIZER_FILE)

        return self.add(checkpoint.digest, fill)

    def add(self, digest: str, fill: Callable[[Path], None]) -> Path:
        """Make a version of what `fill` writes into an empty folder, unless it is there and whole:
        what a disk has spoilt is mended so.

        Raises:
            AdapterCorrupt: that is something else.
            CheckpointInvalid: it is no adapter.
        """
        home = self._home(digest)
        if home.is_dir():
            if _is_whole(home, digest):
                return home
            _log.error("stored adapter %s is corrupt; storing it again", digest)
            self.remove(digest)
        home.parent.mkdir(parents=True, exist_ok=True)
        partial = self._root / f".{digest}.{uuid.uuid4().hex}.partial"
        partial.mkdir()
        try:
            fill(partial)
            # What counts is what was copied, not what was checked a moment ago.
            verify(partial, digest)
            _publish(partial, home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return home

    def open(self, digest: str) -> Path:
        """See `Store.open`."""
        if not is_digest(digest) or not self._home(digest).is_dir():
            raise AdapterMissing(digest)
        return self._home(digest)

    def head(self, digest: str) -> AdapterHead:
        """See `Store.head`."""
        home = self.open(digest)
        config, problems = read_config(home)
        if problems:
            raise AdapterCorrupt(digest, "; ".join(map(str, problems)))
        try:
            return AdapterHead(config, read_entries(home / TENSORS_FILE))
        except (OSError, TensorFileInvalid) as error:
            raise AdapterCorrupt(digest, str(error)) from error

    def read_file(self, digest: str, name: str, sha256: str) -> bytes:
        """See `Store.read_file`."""
        return _read_checked(self.open(digest), digest, name, sha256)

    def remove(self, digest: str) -> None:
        """See `Store.remove`. It disappears at once, whole."""
        if not is_digest(digest):
            return
        leaving = self._root / f".{digest}.{uuid.uuid4().hex}.removed"
        try:
            self._home(digest).rename(leaving)
        except FileNotFoundError:
            return
        _sync(self._home(digest).parent)
        shutil.rmtree(leaving, ignore_errors=True)

    def stored(self, before_s: float) -> list[str]:
        """See `Store.stored`."""
        homes = (home for home in self._root.glob("??/*") if is_digest(home.name))
        return [home.name for home in homes if _is_older(home, before_s)]

    def remove_partial(self, before_s: float) -> None:
        """See `Store.remove_partial`."""
        for pattern in (".*.partial", ".*.removed"):
            for folder in self._root.glob(pattern):
                if _is_older(folder, before_s):
                    shutil.rmtree(folder, ignore_errors=True)

    def _home(self, digest: str) -> Path:
        return self._root / digest[:2] / digest


def verify(home: Path, digest: str) -> None:
    """Read all that a folder holds. Raises AdapterCorrupt if it is not the version."""
    if compute_digest(home) != digest:
        raise AdapterCorrupt(digest, "its files changed while it was stored")
    tokenizer_sha256 = profile_of(home).tokenizer_sha256
    if tokenizer_sha256 is not None:
        _read_checked(home, digest, TOKENIZER_FILE, tokenizer_sha256)


def profile_of(home: Path) -> Profile:
    """What a stored version keeps of its profile."""
    return decode(read_profile(home))


def check_file(data: bytes, digest: str, name: str, sha256: str) -> bytes:
    """The content of a version's file, if it is the one. Raises AdapterCorrupt."""
    if hashlib.sha256(data).hexdigest() != sha256:
        raise AdapterCorrupt(digest, f"its {name} is another")
    return data


def _read_checked(home: Path, digest: str, name: str, sha256: str) -> bytes:
    try:
        data = (home / name).read_bytes()
    except FileNotFoundError:
        raise AdapterCorrupt(digest, f"its {name} is gone") from None
    return check_file(data, digest, name, sha256)


def _is_whole(home: Path, digest: str) -> bool:
    try:
        verify(home, digest)
    except (AdapterCorrupt, CheckpointInvalid, OSError):
        return False
    return True


def _publish(partial: Path, home: Path) -> None:
    # Contents must reach the disk before the name does, or a power cut leaves a whole-looking
    # folder of empty files.
    for path in (*partial.iterdir(), partial):
        _sync(path)
    try:
        partial.rename(home)
    except OSError as error:
        # Another process stored the same digest first; its folder is as good.
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
    _sync(home.parent)
    _sync(home.parent.parent)


def _is_older(path: Path, before_s: float) -> bool:
    try:
        return path.stat().st_mtime < before_s
    except FileNotFoundError:
        return False  # another process removed it


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
