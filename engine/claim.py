"""One worker per socket, by a lock that dies with its process. No torch."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loraplex.engine.errors import AddressInUse
from loraplex.engine.frames import Address, TcpAddress, UnixAddress


@contextmanager
def claimed(address: Address) -> Iterator[None]:
    """Hold an address for this process, so that a socket file left by a dead one can go.

    Raises AddressInUse if a live worker holds it. A TCP port is claimed by listening on it; here
    it is only seen to be free, before a model is loaded.
    """
    if not isinstance(address, UnixAddress):
        _refuse_port_in_use(address)
        yield
        return
    in_use = AddressInUse(
        f"another worker listens on {address.path}; stop it, or give this one its own "
        "LORAPLEX_WORKER_ADDRESS"
    )
    with held(address.path.with_name(address.path.name + ".lock"), in_use):
        address.path.unlink(missing_ok=True)
        yield


@contextmanager
def held(lock: Path, refusal: Exception) -> Iterator[None]:
    """Lock a file, made if it is missing, for this process; a dead one holds none.

    Raises `refusal` if another process has it.
    """
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise refusal from error
        yield
    finally:
        os.close(fd)


def _refuse_port_in_use(address: TcpAddress) -> None:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        socket.create_server((address.host, address.port), family=family).close()
    except OSError as error:
        raise AddressInUse(f"cannot listen on {address}: {error.strerror}") from error
