"""Questions of a gateway to the worker as a whole, and what came back."""

import asyncio
import itertools
from collections.abc import Callable, Sequence

from msgspec import structs

from loraplex.engine.errors import AdapterOverCap, EngineUnavailable
from loraplex.engine.journal_protocol import (
    JournalQuery,
    JournalReport,
    JournalTotals,
    JournalTotalsQuery,
)
from loraplex.engine.protocol import (
    EndVerification,
    MetricsQuery,
    MetricsText,
    SelfTest,
    Verified,
    Verify,
)
from loraplex.engine.residency_protocol import (
    ResidencyQuery,
    ResidencyReport,
    Tier,
    TierQuery,
    TierReport,
)

QUERY_TIMEOUT_S = 1.0
JOURNAL_TIMEOUT_S = 30.0
"""Days of requests may have to be read."""
VERIFY_TIMEOUT_S = 240.0
"""For a test and those before it. One takes seconds, and at most a minute or two."""

Answer = MetricsText | ResidencyReport | TierReport | JournalReport | JournalTotals | Verified


class Queries:
    """Questions that are open. Belongs to one event loop."""

    def __init__(self, send: Callable[[object], None]) -> None:
        """`send` writes a message to the worker, if there is one."""
        self._send = send
        self._open: dict[int, asyncio.Future[Answer | None]] = {}
        self._ids = itertools.count()
        self._tiers: dict[tuple[str, str], asyncio.Task[Tier | None]] = {}
        """One question for each adapter, however many ask at once: tenants ask, and the engine
        answers between its steps."""

    async def metrics(self) -> str:
        """See `EngineClient.metrics`."""
        answer = await self._ask(MetricsQuery, QUERY_TIMEOUT_S)
        return answer.text if isinstance(answer, MetricsText) else ""

    async def residency(self) -> ResidencyReport | None:
        """See `EngineClient.residency`."""
        answer = await self._ask(ResidencyQuery, QUERY_TIMEOUT_S)
        return answer if isinstance(answer, ResidencyReport) else None

    async def tier(self, tenant: str, adapter: str) -> Tier | None:
        """See `EngineClient.tier`."""
        key = tenant, adapter
        asking = self._tiers.get(key)
        if asking is None:
            asking = self._tiers[key] = asyncio.create_task(self._ask_tier(tenant, adapter))
            asking.add_done_callback(lambda _: self._tiers.pop(key))
        return await asyncio.shield(asking)

    async def journal(
        self, request_ids: Sequence[str], accepted_from_s: float
    ) -> JournalReport | None:
        """See `EngineClient.journal`."""
        answer = await self._ask(
            lambda query_id: JournalQuery(query_id, tuple(request_ids), accepted_from_s),
            JOURNAL_TIMEOUT_S,
        )
        return answer if isinstance(answer, JournalReport) else None

    async def journal_totals(self, from_s: float, until_s: float) -> JournalTotals | None:
        """See `EngineClient.journal_totals`."""
        answer = await self._ask(
            lambda query_id: JournalTotalsQuery(query_id, from_s, until_s), JOURNAL_TIMEOUT_S
        )
        return answer if isinstance(answer, JournalTotals) else None

    async def verify(self, asked: Verify) -> SelfTest:
        """See `EngineClient.verify`; `asked` gets a number of its own."""
        answer = await self._ask(
            lambda query_id: structs.replace(asked, query_id=query_id),
            VERIFY_TIMEOUT_S,
            EndVerification,
        )
        if not isinstance(answer, Verified):
            raise EngineUnavailable("the worker went away, or did not test the adapter in time")
        if answer.is_over_cap:
            raise AdapterOverCap(answer.message, "model")
        if answer.report is None:
            raise EngineUnavailable(answer.message)
        return answer.report

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

    async def _ask_tier(self, tenant: str, adapter: str) -> Tier | None:
        answer = await self._ask(
            lambda query_id: TierQuery(query_id, tenant, adapter), QUERY_TIMEOUT_S
        )
        return answer.tier if isinstance(answer, TierReport) else None

    async def _ask(
        self,
        ask: Callable[[int], object],
        timeout_s: float,
        give_up: Callable[[int], object] | None = None,
    ) -> Answer | None:
        query_id = next(self._ids)
        answer: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._open[query_id] = answer
        self._send(ask(query_id))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._open[query_id]
            if give_up is not None and (answer.cancelled() or not answer.done()):
                self._send(give_up(query_id))
