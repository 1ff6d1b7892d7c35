"""One memory of bounded size: which adapters hold bytes of it, and which may be pushed out."""

from collections.abc import Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from loraplex.adapters.spec import AdapterKey

_NO_FLOORS: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class Entry:
    """One adapter that is there or on its way."""

    num_bytes: int
    is_there: bool = False
    leases: int = 0
    is_unclaimed: bool = False
    """It was prefetched, and no request has needed it yet."""
    is_pinned: bool = False
    num_layers: int = 0
    """Layers of it that are there while it is on its way, and how many it has: 0 if that is not
    known yet."""
    of_layers: int = 0
    is_open: bool = False
    """On its way, and may be used in part."""
    used_s: float = 0.0
    """When it was leased or given back last."""

    @property
    def is_usable(self) -> bool:
        """True if a request may run on it, or begin to on what has come."""
        return self.is_there or (self.is_open and not self.is_unclaimed)

    @property
    def left_bytes(self) -> int:
        """Bytes that have not come yet, by the number of its layers."""
        if self.is_there or not self.of_layers:
            return 0 if self.is_there else self.num_bytes
        return self.num_bytes - self.num_bytes * self.num_layers // self.of_layers

    @property
    def is_evictable(self) -> bool:
        """True if a load may push it out."""
        return not self.leases and not self.is_pinned and (self.is_there or self.is_unclaimed)


@dataclass(slots=True)
class _Holding:
    """What one tenant has."""

    held_bytes: int = 0
    evictable_bytes: int = 0
    entries: dict[AdapterKey, Entry] = field(default_factory=dict)
    """From the least to the most recently used."""


class Tier:
    """Entries in the order of their use, and sums of them.

    A floor protects of its tenant's adapters those used last, each whole, as far as they fit into
    it together, pinned ones first: others' loads leave them alone. What nobody has claimed is not
    protected.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.held_bytes = 0
        self.evictable_bytes = 0
        """Of entries that nobody uses, whoever may push them out."""
        self._entries: dict[AdapterKey, Entry] = {}
        """From the least to the most recently used."""
        self._holdings: dict[str, _Holding] = {}
        self._floors = _NO_FLOORS
        self._protected: dict[str, dict[AdapterKey, int]] = {}
        """By tenant, its adapters that only itself may push out, and their bytes."""
        self._protected_bytes = 0
        self._stale: set[str] = set()
        """Tenants with floors for which that is to be found anew."""

    @property
    def free_bytes(self) -> int:
        """Bytes that nobody holds."""
        return self.capacity_bytes - self.held_bytes

    @property
    def entries(self) -> Mapping[AdapterKey, Entry]:
        """All entries, as a view that follows changes; from the least to the most recently used."""
        return self._entries

    @property
    def keys(self) -> KeysView[AdapterKey]:
        """Adapters that are there or on their way, as a view that follows changes."""
        return self._entries.keys()

    def __contains__(self, key: object) -> bool:
        """True if it is there or on its way."""
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: AdapterKey) -> Entry | None:
        """The entry, if there is one. It is changed through this tier's methods alone."""
        return self._entries.get(key)

    def num_bytes(self, key: AdapterKey) -> int:
        """Of what is there or on its way."""
        return self._entries[key].num_bytes

    def items(self) -> Iterable[tuple[AdapterKey, Entry]]:
        """From the least to the most recently used."""
        return self._entries.items()

    def held_by(self, tenant: str) -> int:
        """Bytes of the tenant's adapters."""
        holding = self._holdings.get(tenant)
        return 0 if holding is None else holding.held_bytes

    def evictable_of(self, tenant: str, *, is_prefetch: bool = False) -> int:
        """Bytes of the tenant's own that a load for it may push out."""
        holding = self._holdings.get(tenant)
        if holding is None:
            return 0
        kept = sum(self._protected_of(tenant).values()) if is_prefetch else 0
        return holding.evictable_bytes - kept

    def evictable_for(self, tenant: str | None) -> int:
        """Bytes that a load of the tenant may push out; None: one of which nobody has need."""
        if not self._floors:
            return self.evictable_bytes
        self._refresh()
        own = 0 if tenant is None else sum(self._protected_of(tenant).values())
        return self.evictable_bytes - self._protected_bytes + own

    def candidates(self, tenant: str | None) -> Iterator[AdapterKey]:
        """What a load of the tenant may push out, from the least to the most recently used."""
        for key, entry in self._entries.items():
            is_own = key.tenant == tenant
            if entry.is_evictable and (is_own or not self.is_protected(key)):
                yield key

    def is_protected(self, key: AdapterKey) -> bool:
        """True if only its tenant's own loads may push it out, by a floor."""
        return key in self._protected_of(key.tenant)

    def add(self, key: AdapterKey, entry: Entry) -> None:
        """Hold its bytes from now on."""
        self._entries[key] = entry
        holding = self._holdings.setdefault(key.tenant, _Holding())
        holding.entries[key] = entry
        holding.held_bytes += entry.num_bytes
        self.held_bytes += entry.num_bytes
        self._shift(key, entry, was_evictable=False)

    def remove(self, key: AdapterKey) -> Entry:
        """Give its bytes back."""
        entry = self._entries.pop(key)
        holding = self._holdings[key.tenant]
        del holding.entries[key]
        if entry.is_evictable:
            self.evictable_bytes -= entry.num_bytes
            holding.evictable_bytes -= entry.num_bytes
        holding.held_bytes -= entry.num_bytes
        self.held_bytes -= entry.num_bytes
        if not holding.entries:
            del self._holdings[key.tenant]
        self._changed(key.tenant)
        return entry

    def lease(self, key: AdapterKey, num: int) -> None:
        """So many leases more, or fewer."""
        entry = self._entries[key]
        was_evictable = entry.is_evictable
        entry.leases += num
        self._shift(key, entry, was_evictable=was_evictable)

    def claim(self, key: AdapterKey) -> None:
        """Somebody needs it from now on."""
        entry = self._entries[key]
        was_evictable, entry.is_unclaimed = entry.is_evictable, False
        self._shift(key, entry, was_evictable=was_evictable)

    def arrive(self, key: AdapterKey) -> None:
        """All of it is there."""
        entry = self._entries[key]
        was_evictable, entry.is_there = entry.is_evictable, True
        self._shift(key, entry, was_evictable=was_evictable)

    def pin(self, key: AdapterKey, *, is_pinned: bool) -> None:
        """Keep it from being pushed out, or do so no longer."""
        entry = self._entries[key]
        was_evictable, entry.is_pinned = entry.is_evictable, is_pinned
        self._shift(key, entry, was_evictable=was_evictable)

    def use(self, key: AdapterKey, now_s: float) -> None:
        """It is used now, and so is the one that was used last."""
        self._entries[key].used_s = now_s
        self.touch(key)

    def touch(self, key: AdapterKey) -> None:
        """It is the one that was used last."""
        self._entries[key] = self._entries.pop(key)
        entries = self._holdings[key.tenant].entries
        entries[key] = entries.pop(key)
        self._changed(key.tenant)

    def set_floors(self, floors: Mapping[str, int]) -> None:
        """Replace all floors, by tenant in bytes."""
        self._floors = floors
        self._protected.clear()
        self._protected_bytes = 0
        self._stale = set(floors)

    def check(self) -> None:
        """Assert the conservation laws; holds between any two calls."""
        assert self.held_bytes == sum(entry.num_bytes for entry in self._entries.values())
        assert 0 <= self.held_bytes <= self.capacity_bytes
        evictable = sum(e.num_bytes for e in self._entries.values() if e.is_evictable)
        assert self.evictable_bytes == evictable
        assert all(entry.leases >= 0 for entry in self._entries.values())
        assert sum(len(holding.entries) for holding in self._holdings.values()) == len(self)
        for tenant, holding in self._holdings.items():
            of_tenant = {k: e for k, e in self._entries.items() if k.tenant == tenant}
            assert list(of_tenant) == list(holding.entries), "two orders of use differ"
            assert holding.held_bytes == sum(e.num_bytes for e in of_tenant.values())
            may_go = sum(e.num_bytes for e in of_tenant.values() if e.is_evictable)
            assert holding.evictable_bytes == may_go
        self._refresh()
        for tenant, protected in self._protected.items():
            assert sum(protected.values()) <= self._floors[tenant], "a floor protects too much"
        assert self._protected_bytes == sum(sum(p.values()) for p in self._protected.values())

    def _shift(self, key: AdapterKey, entry: Entry, *, was_evictable: bool) -> None:
        if entry.is_evictable is not was_evictable:
            by = -entry.num_bytes if was_evictable else entry.num_bytes
            self.evictable_bytes += by
            self._holdings[key.tenant].evictable_bytes += by
        self._changed(key.tenant)

    def _changed(self, tenant: str) -> None:
        if tenant in self._floors:
            self._stale.add(tenant)

    def _protected_of(self, tenant: str) -> dict[AdapterKey, int]:
        if not self._floors:
            return {}
        self._refresh()
        return self._protected.get(tenant, {})

    def _refresh(self) -> None:
        for tenant in self._stale:
            before = self._protected.get(tenant, {})
            now = self._protected[tenant] = self._find_protected(tenant)
            self._protected_bytes += sum(now.values()) - sum(before.values())
        self._stale.clear()

    def _find_protected(self, tenant: str) -> dict[AdapterKey, int]:
        holding = self._holdings.get(tenant)
        if holding is None:
            return {}
        entries = holding.entries
        left = self._floors[tenant] - sum(e.num_bytes for e in entries.values() if e.is_pinned)
        protected = {}
        for key, entry in reversed(entries.items()):
            if entry.is_pinned or entry.is_unclaimed or entry.num_bytes > left:
                continue
            left -= entry.num_bytes
            if entry.is_evictable:
                protected[key] = entry.num_bytes
        return protected
