"""Questions of a gateway to the worker as a whole, and what came back."""

import asyncio
import itertools
from collections.abc import Callable

from loraplex.engine.protocol import MetricsQuery, MetricsText
from loraplex.engine.residency_protocol import ResidencyQuery, ResidencyReport

QUERY_TIMEOUT_S = 1.0

Answer = MetricsText | ResidencyReport


class Queries:
    """Questions that are open. Belongs to one event loop."""

    def __init__(self, send: Callable[[object], None]) -> None:
        """`send` writes a message to the worker, if there is one."""
        self._send = send
        self._open: dict[int, asyncio.Future[Answer | None]] = {}
        self._ids = itertools.count()

    async def metrics(self) -> str:
        """See `EngineClient.metrics`."""
        answer = await self._ask(MetricsQuery)
        return answer.text if isinstance(answer, MetricsText) else ""

    async def residency(self) -> ResidencyReport | None:
        """See `EngineClient.residency`."""
        answer = await self._ask(ResidencyQuery)
        return answer if isinstance(answer, ResidencyReport) else None

    def take(self, answer: Answer) -> None:
        """Hand an answer to whoever asked, if that one still waits."""
        query = self._open.get(answer.query_id)
        if query is not None and not query.done():
            query.set_result(answer)

    def lose(self) -> None:
        """Nobody will answer any more."""
        for query in self._open.values():
            if not query.done():
                query.set_result(None)

    async def _ask(self, ask: type[MetricsQuery] | type[ResidencyQuery]) -> Answer | None:
        query_id = next(self._ids)
        answer = self._open[query_id] = asyncio.get_running_loop().create_future()
        self._send(ask(query_id))
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._open[query_id]
