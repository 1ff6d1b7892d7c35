"""One at a time, and turn and turn about between tenants."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairTurns:
    """Who waits alone for its tenant waits at most for one turn of each other tenant, however many
    of those wait. Belongs to one event loop."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By tenant, the next one first; none is empty."""

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Have a turn for the block; who is cancelled while it waits has none."""
        if self._is_taken:
            await self._wait(tenant)
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, tenant: str) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.cancelled():
                self._remove(tenant, mine)
            else:
                self._pass_on()  # it was just given
            raise

    def _pass_on(self) -> None:
        # It stays taken in between, so that nobody slips in before the one that is woken.
        self._is_taken = bool(self._waiting)
        while self._waiting:
            tenant, mine = next(iter(self._waiting.items()))
            following = mine.popleft()
            if mine:
                self._waiting.move_to_end(tenant)
            else:
                del self._waiting[tenant]
            if not following.done():
                following.set_result(None)
                return
        self._is_taken = False

    def _remove(self, tenant: str, mine: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(tenant)
        if waiting is not None and mine in waiting:
            waiting.remove(mine)
            if not waiting:
                del self._waiting[tenant]
