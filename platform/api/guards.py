"""Work that ends early when nobody wants its result any more."""

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn

from starlette.types import Receive

from loraplex.platform.errors import ClientGone


async def disconnected(receive: Receive) -> NoReturn:
    """Wait until the client is gone. Raises ClientGone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone


async def guarded(work: Coroutine[Any, Any, None], *guards: Coroutine[Any, Any, NoReturn]) -> None:
    """Run `work`; the first guard that raises cancels it, and its error is raised.

    The work has ended, with all its clean-up, when this returns.
    """
    working = asyncio.create_task(work)
    watching = [asyncio.create_task(guard) for guard in guards]
    tasks = [working, *watching]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    # A guard that raised while the work came to its end all the same has nothing to say.
    decisive = next((t for t in watching if working.cancelled() and not t.cancelled()), working)
    decisive.result()
