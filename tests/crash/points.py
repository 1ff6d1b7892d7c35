"""Where a process of ours may die: named moments, at which it kills itself as `kill -9` would.

They are laid around functions of a process that a test starts: nothing of them is in the program.
"""

import importlib
import inspect
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Point:
    """A moment: before or after some call of a function."""

    function: str
    """`module:Class.method`."""
    when: Literal["before", "after"]
    most: int = 1
    """The how manieth call it may be: so many come in a round."""


GATEWAY: dict[str, Point] = {
    "held in the store, no intent": Point(
        "loraplex.tenants.quotas_redis:RedisQuotas.reserve", "after", 4
    ),
    "before its intents are written": Point(
        "loraplex.platform.intent_writer:_Lane._write", "before"
    ),
    "intent written, not dispatched": Point(
        "loraplex.platform.intent_writer:_Lane._write", "after"
    ),
    "a token came": Point("loraplex.platform.open_request:OpenRequest.note", "after", 60),
    "generated, before its usage is committed": Point(
        "loraplex.platform.ledger_writer:LedgerWriter._commit", "before"
    ),
    "usage committed, the store not told": Point(
        "loraplex.platform.ledger_writer:LedgerWriter._commit", "after"
    ),
    "before the store is told": Point(
        "loraplex.tenants.quotas_redis:RedisQuotas.settle", "before", 4
    ),
    "the store told": Point("loraplex.tenants.quotas_redis:RedisQuotas.settle", "after", 4),
}
WORKER: dict[str, Point] = {
    "before a request is written down": Point("loraplex.engine.journal:Journal.begin", "before", 6),
    "a request written down, not begun": Point("loraplex.engine.journal:Journal.begin", "after", 6),
    "before a step is written down": Point("loraplex.engine.journal:Journal.note", "before", 30),
    "a step written down, not sent": Point("loraplex.engine.journal:Journal.note", "after", 30),
}
ALL = GATEWAY | WORKER


def install(point: Point, number: int) -> None:
    """Let this process die at the `number`th time that it comes to a point."""
    module, _, path = point.function.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    left = iter(range(number - 1))

    def pass_by() -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, _around(getattr(owner, name), point.when, pass_by))


def _around(function: Callable[..., Any], when: str, pass_by: Callable[[], None]) -> Any:
    async def awaited(*args: object, **options: object) -> object:
        if when == "before":
            pass_by()
        result = await function(*args, **options)
        if when == "after":
            pass_by()
        return result

    def called(*args: object, **options: object) -> object:
        if when == "before":
            pass_by()
        result = function(*args, **options)
        if when == "after":
            pass_by()
        return result

    return awaited if inspect.iscoroutinefunction(function) else called
