"""One platform per data directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DataDirInUse(Exception):
    """Another platform serves from the data directory; the message has the remedy."""


@contextmanager
def sole_platform(data_dir: Path) -> Iterator[None]:
    """Hold a data directory until the end of the block; a dead platform holds none.

    Raises DataDirInUse.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    fd = os.open(data_dir / "serve.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataDirInUse(
                f"another `loraplex serve` serves from {data_dir.resolve()}; stop it, or choose "
                "another folder with --data-dir"
            ) from error
        yield
    finally:
        os.close(fd)
