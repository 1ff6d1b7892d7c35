"""The stream's frames (4-byte little-endian length, one MessagePack value), addresses, guards."""

import socket
import ssl
import struct
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from loraplex.engine.errors import StreamAddressInvalid
from loraplex.engine.protocol import MAX_FRAME_BYTES

_LENGTH = struct.Struct("<I")
MAX_UNIX_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux (`sun_path` less its terminating zero)."""

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """`unix:PATH`, for a gateway and a worker on one host; guarded by the file's permissions."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """`tcp://HOST:PORT`, between hosts; guarded by TLS and a token."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True for an address that no other host can reach."""
        return self.host in {"127.0.0.1", "::1", "localhost"}


Address = UnixAddress | TcpAddress


@dataclass(frozen=True, slots=True)
class Security:
    """What guards the stream: a shared token and, between hosts, one pinned certificate."""

    token: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def server_context(self) -> ssl.SSLContext | None:
        """TLS of the worker; None without a certificate. Raises StreamAddressInvalid."""
        if self.tls_cert is None and self.tls_key is None:
            return None
        if self.tls_cert is None or self.tls_key is None:
            raise StreamAddressInvalid(
                "a worker needs both LORAPLEX_WORKER_TLS_CERT and LORAPLEX_WORKER_TLS_KEY, or none"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.tls_cert, self.tls_key)
        return context

    def client_context(self) -> ssl.SSLContext | None:
        """TLS of the gateway, which trusts exactly the worker's certificate, whatever its name."""
        if self.tls_cert is None:
            return None
        context = ssl.create_default_context(cafile=str(self.tls_cert))
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context


def parse_address(text: str, security: Security) -> Address:
    """Read `unix:PATH` or `tcp://HOST:PORT`. Raises StreamAddressInvalid."""
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if len(bytes(path)) > MAX_UNIX_PATH_BYTES:
            raise StreamAddressInvalid(
                f"the socket path {path} is longer than {MAX_UNIX_PATH_BYTES} bytes; choose a "
                "shorter one with LORAPLEX_WORKER_ADDRESS=unix:PATH"
            )
        return UnixAddress(path)
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    if not text.startswith("tcp://") or not colon or not host or not _is_port(port):
        raise StreamAddressInvalid(
            f"worker address {text!r} is neither unix:PATH nor tcp://HOST:PORT"
        )
    address = TcpAddress(host.strip("[]"), int(port))
    if not security.token:
        raise StreamAddressInvalid(f"{text} needs a token: set LORAPLEX_WORKER_TOKEN on both sides")
    if security.tls_cert is None and not address.is_loopback:
        raise StreamAddressInvalid(
            f"{text} leaves this host: set LORAPLEX_WORKER_TLS_CERT and _KEY"
        )
    return address


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 16


def notice_loss(writer: StreamWriter) -> None:
    """Have the kernel end a TCP connection whose other host is gone, within about 10 s."""
    connection: socket.socket = writer.get_extra_info("socket")
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)


def encode(message: object) -> bytes:
    """One frame. Raises ValueError if it is larger than MAX_FRAME_BYTES."""
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes is larger than {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


async def read_frame(
    reader: StreamReader,
    decoder: msgspec.msgpack.Decoder[Message],
    max_bytes: int = MAX_FRAME_BYTES,
) -> Message:
    """Read one frame.

    Raises IncompleteReadError when the stream ends, ValueError when it is not our protocol.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > max_bytes:
        raise ValueError(f"a frame of {length} bytes is larger than {max_bytes}")
    body = await reader.readexactly(length)
    try:
        return decoder.decode(body)
    except RecursionError:
        raise ValueError("a frame is nested too deeply") from None
