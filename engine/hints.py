"""What tenants have said that they will use soon: until when, and whose turn it is. No clock."""

from collections.abc import Iterator
from math import inf

from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey

MAX_OF_TENANT = 64
"""Open hints of one tenant, by whichever gateways."""
_SHARE = 4
"""Hints bring at most one part in so many of the device's memory; one tenant's half of that, or one
adapter. So no tenant's hints keep another's from being followed."""


class Hints:
    """Hints that are open. Each ends at its time, or when a request for its adapter comes.

    A hint is no promise. It makes its adapter worth one use more (`Demand.hint`), and lets it be
    fetched in time that nobody needs more. The tenants take turns.
    """

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._until_s: dict[str, dict[AdapterKey, float]] = {}
        """By tenant, the one first whose turn it is; of each the oldest hint first. What a request
        has come for is in it until it is looked through."""
        self._next_end_s = inf

    def __bool__(self) -> bool:
        """False if there are none."""
        return bool(self._until_s)

    def note(self, key: AdapterKey, num_bytes: int, until_s: float) -> bool:
        """Its tenant will use an adapter of so many bytes. Said again, the later time holds. False
        if the tenant has too many open hints."""
        is_hinted = self._residency.demand.is_hinted
        of_tenant = self._until_s.get(key.tenant, {})
        if key not in of_tenant and len(of_tenant) >= MAX_OF_TENANT:
            for ended in [known for known in of_tenant if not is_hinted(known)]:
                del of_tenant[ended]
            if len(of_tenant) >= MAX_OF_TENANT:
                return False
        of_tenant[key] = max(until_s, of_tenant.get(key, until_s))
        self._until_s.setdefault(key.tenant, of_tenant)
        self._next_end_s = min(self._next_end_s, until_s)
        self._residency.demand.hint(key, num_bytes)
        return True

    def end_past(self, now: float) -> None:
        """End those whose time is over."""
        if now < self._next_end_s:
            return
        demand = self._residency.demand
        for tenant, of_tenant in list(self._until_s.items()):
            for key, until_s in list(of_tenant.items()):
                if until_s <= now or not demand.is_hinted(key):
                    demand.end_hint(key)
                    del of_tenant[key]
            if not of_tenant:
                del self._until_s[tenant]
        ends = (until_s for hints in self._until_s.values() for until_s in hints.values())
        self._next_end_s = min(ends, default=inf)

    def absent(self) -> Iterator[AdapterKey]:
        """For each tenant in turn, the oldest of its hints whose adapter is absent and may be
        brought; whoever is asked about goes to the end of the row."""
        room = self._residency.capacity_bytes // _SHARE - sum(map(self._brought, self._until_s))
        for tenant in list(self._until_s):
            key = self._first_absent(tenant, room)
            if key is not None:
                self._until_s[tenant] = self._until_s.pop(tenant)
                yield key

    def _first_absent(self, tenant: str, room_bytes: int) -> AdapterKey | None:
        residency, brought = self._residency, self._brought(tenant)
        most = residency.capacity_bytes // _SHARE // 2
        for key in self._until_s[tenant]:
            num_bytes = residency.demand.num_bytes(key)
            is_within = num_bytes <= room_bytes and (not brought or brought + num_bytes <= most)
            is_open = is_within and residency.demand.is_hinted(key)
            if is_open and residency.state(key) is State.ABSENT:
                return key
        return None

    def _brought(self, tenant: str) -> int:
        """Bytes of what was fetched for a tenant's open hints and that no request has needed."""
        residency = self._residency
        return sum(
            residency.demand.num_bytes(key)
            for key in self._until_s[tenant]
            if residency.prefetched.cause(key) == "hint"
        )
