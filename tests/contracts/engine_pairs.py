"""Both implementations of the engine's client, each with what moves the engine behind it."""

from dataclasses import dataclass

from tests.contracts.scripted_worker import ScriptedWorker
from tests.platform.scripted_engine import ScriptedEngine

from loraplex.engine.client import EngineClient

MAX_EVENTS = 8


@dataclass
class Pair:
    """A client, and what moves the engine behind it."""

    client: EngineClient
    engine: ScriptedEngine | ScriptedWorker
