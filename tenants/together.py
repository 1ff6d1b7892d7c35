"""Asks that wait at a time, answered together."""

import asyncio
from asyncio import Future, Task
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Together(Generic[K, V]):
    """Has one answer under way at a time; whoever asks meanwhile waits for the next."""

    def __init__(self, answer: Callable[[Collection[K]], Awaitable[Mapping[K, V]]]) -> None:
        """`answer` maps what is asked for to what there is of it."""
        self._answer = answer
        self._waiting: dict[K, Future[V | None]] = {}
        self._answering: Task[None] | None = None

    async def get(self, key: K) -> V | None:
        """Return what there is, as of after this was called. Raises what `answer` does."""
        waiter = self._waiting.get(key)
        if waiter is None:
            waiter = self._waiting[key] = asyncio.get_running_loop().create_future()
        if self._answering is None or self._answering.done():
            self._answering = asyncio.create_task(self._answer_waiting())
        # One that leaves takes nobody along who asks for the same.
        return await asyncio.shield(waiter)

    async def _answer_waiting(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            try:
                found = await self._answer(waiting)
            except Exception as error:  # noqa: BLE001  whoever waits gets it
                for waiter in waiting.values():
                    waiter.set_exception(error)
                    waiter.exception()  # who waited may have left
            else:
                for key, waiter in waiting.items():
                    waiter.set_result(found.get(key))
