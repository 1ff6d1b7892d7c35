"""Addresses of the stream, and what guards it."""

from asyncio import StreamReader
from pathlib import Path

import msgspec
import pytest

from loraplex.engine.errors import StreamAddressInvalid
from loraplex.engine.frames import Security, parse_address, read_frame
from loraplex.engine.protocol import GatewayMessage, Hello, WorkerMessage


@pytest.mark.parametrize(
    ("text", "security", "message"),
    [
        ("nowhere", Security(), "neither unix:PATH"),
        ("unix:/" + "x" * 200, Security(), "longer than 107 bytes"),
        ("tcp://127.0.0.1:1", Security(), "needs a token"),
        ("tcp://192.0.2.1:1", Security(token="t"), "leaves this host"),
        ("tcp://host:port", Security(token="t"), "neither unix:PATH"),
        ("tcp://127.0.0.1:70000", Security(token="t"), "neither unix:PATH"),
    ],
)
def test_an_address_that_is_wrong_or_unguarded_is_refused(
    text: str, security: Security, message: str
) -> None:
    with pytest.raises(StreamAddressInvalid, match=message):
        parse_address(text, security)


@pytest.mark.parametrize("given", [{"tls_cert": "c"}, {"tls_key": "k"}])
def test_half_of_a_certificate_never_means_plain_text(given: dict[str, str]) -> None:
    security = Security("t", **{name: Path(value) for name, value in given.items()})
    with pytest.raises(StreamAddressInvalid, match="both"):
        security.server_context()


@pytest.mark.parametrize("kind", [Hello, GatewayMessage, WorkerMessage])
@pytest.mark.parametrize("start", [b"", b"\x82\xa4type\xa5hello\xa1x"])
async def test_a_frame_that_is_nested_deeply_is_not_our_protocol(kind: type, start: bytes) -> None:
    body = start + b"\x91" * 100_000
    reader = StreamReader()
    reader.feed_data(len(body).to_bytes(4, "little") + body)
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        await read_frame(reader, msgspec.msgpack.Decoder(kind))
