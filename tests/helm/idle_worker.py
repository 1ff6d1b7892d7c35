"""The engine's own stream, in front of no engine: a worker that has introduced its model."""

import asyncio
import secrets
import time
from asyncio import StreamReader
from pathlib import Path
from typing import Any

from loraplex.engine.frames import Security, TcpAddress
from loraplex.engine.journal import Journal
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

    def __init__(self, security: Security, journal: Journal) -> None:
        self.welcomed = asyncio.Event()
        self._own_journal = journal
        welcome = Welcome(protocol=PROTOCOL_VERSION, epoch=secrets.token_hex(4), model=MODEL)
        super().__init__(Mailbox(), welcome, security, str, _not_asked, journal)

    async def close(self) -> None:
        await super().close()
        await self._own_journal.close()

    async def _greet(self, reader: StreamReader, gateway: Any) -> bool:
        greeted = await super()._greet(reader, gateway)
        if greeted:
            self.welcomed.set()
        return greeted


async def started(security: Security, port: int, folder: Path) -> IdleWorker:
    """A worker that listens, with a journal in `folder`; close it."""
    server = IdleWorker(security, Journal(folder / "journal", 7, 8, time.time))
    await server.start(TcpAddress("127.0.0.1", port))
    return server
