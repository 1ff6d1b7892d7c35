"""Which adapter versions have requests here, from before they are resolved to their end.

Who deletes a version must know of all requests that may run on it: those that are open, and those
whose name was resolved just before the version was retired. So a request is noted before it asks
the database, and `settled` waits until each one that was being resolved is known.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class AdapterUse:
    """One request's use of whatever it turns out to run on."""

    def __init__(self) -> None:
        self.model: str | None = None
        """`tenant/adapter@version`; None while it is not known, and for the base model."""
        self.broken_by: Exception | None = None
        """What the request ends with, as soon as it can."""
        self.is_known = asyncio.Event()
        self._on_break: Callable[[], object] = lambda: None

    def runs_on(self, model: str | None) -> None:
        """It was resolved."""
        self.model = model
        self.is_known.set()

    def end_with(self, on_break: Callable[[], object]) -> None:
        """From now on the request is ended by calling `on_break`."""
        self._on_break = on_break

    def check(self) -> None:
        """Raise what the request ends with, if it was broken off."""
        if self.broken_by is not None:
            raise self.broken_by

    def break_off(self, error: Exception) -> None:
        """End the request with this error, once."""
        if self.broken_by is None:
            self.broken_by = error
            self._on_break()


class AdapterUses:
    """All of them. `on_end` hears of each version that may have lost its last request."""

    def __init__(self) -> None:
        self._uses: set[AdapterUse] = set()
        self.on_end: Callable[[str], object] = lambda _: None

    @contextmanager
    def use(self) -> Iterator[AdapterUse]:
        """A request that comes, until its end."""
        use = AdapterUse()
        self._uses.add(use)
        try:
            yield use
        finally:
            self._uses.discard(use)
            use.is_known.set()
            if use.model is not None:
                self.on_end(use.model)

    async def settled(self) -> None:
        """Return when all requests that are here now are known by what they run on."""
        for use in list(self._uses):
            await use.is_known.wait()

    def of(self, model: str) -> list[AdapterUse]:
        """The requests on one version, as far as they are known."""
        return [use for use in self._uses if use.model == model]
