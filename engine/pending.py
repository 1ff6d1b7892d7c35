"""Questions on a stream that wait for their answers."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class PendingQuestions(Generic[Answer]):
    """Questions of one kind, by number. Belongs to one event loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    async def ask(self, send: Callable[[int], None], timeout_s: float) -> Answer:
        """Send a question under a number of its own, and wait for the answer.

        Raises TimeoutError, and what the question is failed with.
        """
        number = next(self._numbers)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            send(number)
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            del self._waiting[number]

    def answer(self, number: int, answer: Answer) -> None:
        """Give an answer; one that nobody waits for any more is dropped."""
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def fail(self, number: int, error: Exception) -> None:
        """Say that there will be no answer."""
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    def fail_all(self, error: Exception) -> None:
        """Say so of all that wait."""
        for number in self._waiting:
            self.fail(number, error)
