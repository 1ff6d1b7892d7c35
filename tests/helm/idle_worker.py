"""The engine's own stream, in front of no engine: a worker that has introduced its model."""

import asyncio
import secrets
from asyncio import StreamReader
from typing import Any

from loraplex.engine.frames import Security, TcpAddress
from loraplex.engine.mailbox import Mailbox
from loraplex.engine.protocol import PROTOCOL_VERSION, ModelInfo, Verified, Verify, Welcome
from loraplex.engine.stream import StreamServer

MODEL = ModelInfo(
    name="model",
    max_model_len=8,
    vocab_size=8,
    tokenizer_json=b"{}",
    chat_template="",
    special_tokens={},
    dtype="float32",
    device="cpu",
)


async def _not_asked(verify: Verify) -> Verified:
    raise AssertionError(verify)


class IdleWorker(StreamServer):
    """Says when a gateway has been welcomed."""

    def __init__(self, security: Security) -> None:
        self.welcomed = asyncio.Event()
        welcome = Welcome(protocol=PROTOCOL_VERSION, epoch=secrets.token_hex(4), model=MODEL)
        super().__init__(Mailbox(), welcome, security, str, _not_asked)

    async def _greet(self, reader: StreamReader, gateway: Any) -> bool:
        greeted = await super()._greet(reader, gateway)
        if greeted:
            self.welcomed.set()
        return greeted


async def started(security: Security, port: int) -> IdleWorker:
    """A worker that listens; close it."""
    server = IdleWorker(security)
    await server.start(TcpAddress("127.0.0.1", port))
    return server
