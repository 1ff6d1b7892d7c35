"""How much memory of a tier can be had, for whom, and what has to go for it. Changes nothing."""

from collections.abc import Iterable

from loraplex.adapters.demand import Demand
from loraplex.adapters.eviction import Eviction
from loraplex.adapters.reservations import Promises
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.tier import Tier


class Room:
    """What promises leave of one memory."""

    def __init__(self, tier: Tier, promises: Promises, eviction: Eviction, demand: Demand) -> None:
        self._tier = tier
        self._promises = promises
        self._eviction = eviction
        self._demand = demand

    def for_load(self, tenant: str | None, *, is_prefetch: bool) -> int:
        """See `Residency.loadable_bytes`."""
        tier = self._tier
        room = tier.free_bytes + tier.evictable_for(None if is_prefetch else tenant)
        cap = self._promises.cap(tenant)
        if cap is None or tenant is None:
            return room
        kept = tier.held_by(tenant) - tier.evictable_of(tenant, is_prefetch=is_prefetch)
        return min(room, cap - kept)

    def victims(
        self, num_bytes: int, tenant: str | None, *, is_prefetch: bool
    ) -> tuple[AdapterKey, ...]:
        """See `Residency.victims`."""
        missing, over = num_bytes - self._tier.free_bytes, self._over_cap(num_bytes, tenant)
        if missing <= 0 and over <= 0:
            return ()
        may_go = list(self._tier.candidates(None if is_prefetch else tenant))
        ordered = self._eviction.order(may_go, self._demand)
        own = self._first([key for key in ordered if key.tenant == tenant], over)
        missing -= sum(map(self._tier.num_bytes, own))
        return (*own, *self._first([key for key in ordered if key not in own], missing))

    def idle(self) -> list[AdapterKey]:
        """What nobody uses, nobody waits for, and nothing is promised of."""
        candidates = self._tier.candidates(None)
        return [key for key in candidates if not self._demand.is_awaited(key)]

    def idle_victims(self, missing_bytes: int) -> list[AdapterKey]:
        """Of those, what has to go so that so many bytes more are free."""
        if missing_bytes <= 0:
            return []
        return self._first(self._eviction.order(self.idle(), self._demand), missing_bytes)

    def spare_bytes(self) -> int:
        """See `Residency.spare_bytes`."""
        return self._tier.free_bytes + sum(map(self._tier.num_bytes, self.idle()))

    def missing_bytes(self, num_bytes: int, tenant: str) -> int | None:
        """See `Residency.missing_bytes`."""
        tier, cap = self._tier, self._promises.cap(tenant)
        missing = num_bytes - tier.free_bytes - tier.evictable_for(tenant)
        kept = tier.held_by(tenant) - tier.evictable_of(tenant)
        is_capped = cap is not None and kept + num_bytes > cap
        return None if missing <= 0 or is_capped else missing

    def _first(self, ordered: Iterable[AdapterKey], missing_bytes: int) -> list[AdapterKey]:
        victims: list[AdapterKey] = []
        for key in ordered:
            if missing_bytes <= 0:
                break
            victims.append(key)
            missing_bytes -= self._tier.num_bytes(key)
        return victims

    def _over_cap(self, num_bytes: int, tenant: str | None) -> int:
        """Bytes by which a load would make the tenant exceed its cap."""
        cap = self._promises.cap(tenant)
        if cap is None or tenant is None:
            return 0
        return self._tier.held_by(tenant) + num_bytes - cap
