"""Content-addressed store of adapters on one file system: `<root>/<ab>/<digest>/`, two files each.

A version never changes once it is there. It appears whole or not at all, whoever crashes or races.
"""

import errno
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE, Checkpoint, compute_digest
from loraplex.adapters.digest import is_digest
from loraplex.adapters.errors import AdapterCorrupt, AdapterMissing, TensorFileInvalid
from loraplex.adapters.tensor_file import read_entries


@dataclass(frozen=True, slots=True)
class AdapterSizes:
    """How large an adapter is."""

    num_elements: int
    num_bytes: int
    """Of its tensors, in the dtype of its files."""


class AdapterStore:
    """Adapters by digest. Any number of processes may use one root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, checkpoint: Checkpoint) -> Path:
        """Copy a checked checkpoint into the store; one that is there already is left alone.

        Raises:
            AdapterCorrupt: the files changed after they were checked.
            CheckpointInvalid: they changed into something that is no adapter.
        """
        home = self._home(checkpoint.digest)
        if home.is_dir():
            return home
        home.parent.mkdir(parents=True, exist_ok=True)
        partial = self._root / f".{checkpoint.digest}.{uuid.uuid4().hex}.partial"
        partial.mkdir()
        try:
            for name in (CONFIG_FILE, TENSORS_FILE):
                shutil.copyfile(checkpoint.directory / name, partial / name)
            # What counts is what was copied, not what was checked a moment ago.
            if compute_digest(partial) != checkpoint.digest:
                raise AdapterCorrupt(checkpoint.digest, "its files changed while it was stored")
            _publish(partial, home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return home

    def open(self, digest: str) -> Path:
        """Folder of a stored adapter; AdapterMissing if there is none."""
        if not is_digest(digest) or not self._home(digest).is_dir():
            raise AdapterMissing(digest)
        return self._home(digest)

    def num_bytes(self, digest: str, *, bytes_per_element: int) -> int:
        """Bytes that the adapter's tensors take in the runtime's dtype."""
        return self.sizes(digest).num_elements * bytes_per_element

    def sizes(self, digest: str) -> AdapterSizes:
        """Read how large the adapter is, from the header of its file alone.

        Raises:
            AdapterMissing: the store does not have it.
            AdapterCorrupt: its file cannot be read.
        """
        try:
            entries = read_entries(self.open(digest) / TENSORS_FILE)
        except (OSError, TensorFileInvalid) as error:
            raise AdapterCorrupt(digest, str(error)) from error
        return AdapterSizes(
            sum(entry.num_elements for entry in entries), sum(entry.num_bytes for entry in entries)
        )

    def _home(self, digest: str) -> Path:
        return self._root / digest[:2] / digest


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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
