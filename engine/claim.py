"""One worker per socket. No torch."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from loraplex.engine.errors import AddressInUse
from loraplex.engine.frames import Address, UnixAddress


@contextmanager
def claimed(address: Address) -> Iterator[None]:
    """Hold an address for this process, so that a socket file left by a dead one can go.

    Raises AddressInUse if a live worker holds it. A TCP port is claimed by listening on it.
    """
    if not isinstance(address, UnixAddress):
        yield
        return
    lock = address.path.with_name(address.path.name + ".lock")
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AddressInUse(
                f"another worker listens on {address.path}; stop it, or give this one its own "
                "LORAPLEX_WORKER_ADDRESS"
            ) from error
        address.path.unlink(missing_ok=True)
        yield
    finally:
        os.close(fd)
