"""Hints that a gateway has sent and that still hold. No torch."""

from collections.abc import Callable

from loraplex.engine.residency_protocol import Warm


class HintsSent:
    """Hints of one gateway, which bounds how many each tenant has. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._until_s: dict[str, dict[str, float]] = {}
        """By tenant and digest; what is past is forgotten when its tenant is looked at."""

    def note(self, hint: Warm) -> None:
        """One was sent; of several for one adapter the latest end holds."""
        now = self._clock()
        until_s = self._held(hint.tenant, now)
        until_s[hint.adapter] = max(now + hint.ttl_s, until_s.get(hint.adapter, now))
        self._until_s[hint.tenant] = until_s

    def end(self, tenant: str, adapter: str) -> None:
        """The adapter is gone."""
        self._until_s.get(tenant, {}).pop(adapter, None)

    def of(self, tenant: str) -> dict[str, float]:
        """For how many seconds each of a tenant's hints still holds, by digest."""
        now = self._clock()
        return {digest: end_s - now for digest, end_s in self._held(tenant, now).items()}

    def left(self) -> list[Warm]:
        """All that still hold, for the rest of their time."""
        return [
            Warm(tenant, digest, left_s)
            for tenant in list(self._until_s)
            for digest, left_s in self.of(tenant).items()
        ]

    def _held(self, tenant: str, now: float) -> dict[str, float]:
        until_s = self._until_s.pop(tenant, {})
        held = {digest: end_s for digest, end_s in until_s.items() if end_s > now}
        if held:
            self._until_s[tenant] = held
        return held
