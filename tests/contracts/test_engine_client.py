"""What every engine client promises to the gateway: the real one, and the one of the tests."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from loraplex.engine.client import EngineClient, Security, StreamClient
from loraplex.engine.errors import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    RequestFailed,
    RequestRefused,
)
from loraplex.engine.frames import UnixAddress
from loraplex.engine.protocol import Finished, Sampling, Submit, Tokens
from tests.contracts.scripted_worker import ScriptedWorker
from tests.platform.scripted_engine import ScriptedEngine
from tests.platform.tiny_model import model_info

MAX_EVENTS = 8


@dataclass
class Pair:
    """A client, and what moves the engine behind it."""

    client: EngineClient
    engine: ScriptedEngine | ScriptedWorker


@pytest.fixture(params=["scripted", "stream"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    if request.param == "scripted":
        engine = ScriptedEngine(model_info(), MAX_EVENTS)
        yield Pair(engine, engine)
        return
    worker = ScriptedWorker(tmp_path / "w.sock", model_info(), MAX_EVENTS)
    await worker.start()
    yield Pair(worker.client, worker)
    await worker.stop()


@pytest.fixture(params=["scripted", "stream"])
async def unconnected(request: pytest.FixtureRequest, tmp_path: Path) -> EngineClient:
    if request.param == "scripted":
        return ScriptedEngine(None)
    return StreamClient(UnixAddress(tmp_path / "none.sock"), Security(), MAX_EVENTS)


def submit(request_id: str) -> Submit:
    return Submit(
        request_id=request_id,
        tenant="t",
        adapter=None,
        prompt=(1, 2, 3),
        sampling=Sampling(max_tokens=50, seed=1),
    )


async def test_tokens_come_in_order_and_then_one_finished(pair: Pair) -> None:
    texts: list[str] = []
    num_ids = 0
    async for event in pair.client.generate(submit("a")):
        if not texts:
            pair.engine.finish("a", "length", text="!", cached=2)
        texts.append(event.text)
        if isinstance(event, Tokens):
            assert event.sequence == num_ids
            num_ids += len(event.ids)
    assert isinstance(event, Finished)
    assert (event.reason, event.usage.prompt_tokens, event.usage.cached_tokens) == ("length", 3, 2)
    assert event.usage.completion_tokens == num_ids
