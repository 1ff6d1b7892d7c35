"""How many adapters a tenant may have warmed at a time."""

from collections.abc import Callable

from loraplex.platform.errors import TooManyHints


class OpenHints:
    """Hints that hold, as far as this gateway was asked for them. Bounds them for each tenant."""

    def __init__(self, max_of_tenant: int, clock: Callable[[], float]) -> None:
        """`clock` tells seconds since the epoch."""
        self._max_of_tenant = max_of_tenant
        self._clock = clock
        self._until_s: dict[str, dict[str, float]] = {}
        """By tenant and digest."""

    def note(self, tenant_id: str, digest: str, ttl_s: float) -> float:
        """One more is asked for, or the same again, of which the later end holds. Returns that, in
        seconds since the epoch. Raises TooManyHints."""
        now = self._clock()
        self._end_past(now)
        of_tenant = self._until_s.get(tenant_id, {})
        if digest not in of_tenant and len(of_tenant) >= self._max_of_tenant:
            raise TooManyHints(self._max_of_tenant, min(of_tenant.values()) - now)
        until_s = of_tenant[digest] = max(now + ttl_s, of_tenant.get(digest, now))
        self._until_s[tenant_id] = of_tenant
        return until_s

    def _end_past(self, now: float) -> None:
        left = {
            tenant_id: {digest: until_s for digest, until_s in hints.items() if until_s > now}
            for tenant_id, hints in self._until_s.items()
        }
        self._until_s = {tenant_id: hints for tenant_id, hints in left.items() if hints}
