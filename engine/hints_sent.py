"""Hints that a gateway has sent and that still hold, for a worker that connects. No torch."""

from collections.abc import Callable

from loraplex.engine.residency_protocol import Warm


class HintsSent:
    """Hints of one gateway, which bounds how many there are. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._until_s: dict[tuple[str, str], float] = {}

    def note(self, hint: Warm) -> None:
        """One was sent; of several for one adapter the latest end holds."""
        now = self._clock()
        self._until_s = {key: until_s for key, until_s in self._until_s.items() if until_s > now}
        key = hint.tenant, hint.adapter
        self._until_s[key] = max(now + hint.ttl_s, self._until_s.get(key, now))

    def end(self, tenant: str, adapter: str) -> None:
        """The adapter is gone."""
        self._until_s.pop((tenant, adapter), None)

    def left(self) -> list[Warm]:
        """Those that still hold, for the rest of their time."""
        now = self._clock()
        return [
            Warm(*key, until_s - now) for key, until_s in self._until_s.items() if until_s > now
        ]
