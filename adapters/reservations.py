"""What of a memory is promised to whom: pins, floors and caps. A value, by version."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from loraplex.adapters.spec import AdapterKey

RESERVABLE_SHARE = 0.5
"""Of a memory for adapters, what pins and floors may take together: the rest is there
for whoever is not promised anything."""


@dataclass(frozen=True, slots=True)
class Reservations:
    """What was asked for; a newer one replaces all of an older."""

    version: int = 0
    pinned: Mapping[AdapterKey, int] = field(default_factory=lambda: MappingProxyType({}))
    """Adapters that are to be loaded and kept, and their bytes; the most wanted first."""
    floors: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """By tenant, bytes that others cannot push its adapters out of; its pins are among them."""
    caps: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """By tenant, the most bytes that its adapters may hold."""
    host_floors: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    host_caps: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """The same of the host's memory; nothing is pinned there."""

    def of_host(self) -> "Reservations":
        """What is asked of the host's memory alone."""
        return Reservations(self.version, {}, self.host_floors, self.host_caps)


@dataclass(frozen=True, slots=True)
class Granted:
    """What of it holds."""

    reservations: Reservations
    refused_pins: tuple[AdapterKey, ...] = ()
    """They would exceed their tenant's cap, or what may be reserved."""
    refused_floors: tuple[str, ...] = ()
    """Tenants whose floors would exceed what may be reserved."""

    @property
    def num_held(self) -> int:
        """Pins and floors that hold."""
        return len(self.reservations.pinned) + len(self.reservations.floors)

    @property
    def num_refused(self) -> int:
        """Pins and floors that do not hold."""
        return len(self.refused_pins) + len(self.refused_floors)


def grant(asked: Reservations, capacity_bytes: int) -> Granted:
    """Pins first, in their order, then floors by tenant's id, each wholly or not at all, as long
    as together they stay within RESERVABLE_SHARE. So none can block those who were promised
    nothing."""
    left = int(capacity_bytes * RESERVABLE_SHARE)
    pinned: dict[AdapterKey, int] = {}
    pinned_bytes: dict[str, int] = {}
    refused_pins = []
    for key, num_bytes in asked.pinned.items():
        of_tenant = pinned_bytes.get(key.tenant, 0) + num_bytes
        if num_bytes > left or of_tenant > asked.caps.get(key.tenant, of_tenant):
            refused_pins.append(key)
            continue
        pinned[key], pinned_bytes[key.tenant] = num_bytes, of_tenant
        left -= num_bytes
    floors: dict[str, int] = {}
    refused_floors = []
    for tenant in sorted(asked.floors):
        more = max(0, asked.floors[tenant] - pinned_bytes.get(tenant, 0))
        if more > left:
            refused_floors.append(tenant)
            continue
        floors[tenant] = asked.floors[tenant]
        left -= more
    held = Reservations(asked.version, pinned, floors, asked.caps)
    return Granted(held, tuple(refused_pins), tuple(refused_floors))


class Promises:
    """What holds of the newest reservations, until what is pinned is dropped."""

    def __init__(self, capacity_bytes: int) -> None:
        """Of one memory for adapters."""
        self.capacity_bytes = capacity_bytes
        self.granted = Granted(Reservations())
        """What was granted."""
        self.pinned: dict[AdapterKey, int] = {}
        """Adapters that are pinned now, and their bytes."""
        self._own_pins: dict[str, int] = {}
        self._promised: dict[str, int] = {}
        """By tenant, bytes of its pins; and of them and its floor together."""

    @property
    def floors(self) -> Mapping[str, int]:
        """By tenant."""
        return self.granted.reservations.floors

    def cap(self, tenant: str | None) -> int | None:
        """The most bytes that the tenant's adapters may hold; None for no cap, or for nobody."""
        return None if tenant is None else self.granted.reservations.caps.get(tenant)

    def renew(self, asked: Reservations) -> bool:
        """Grant what is asked, unless it is not newer than what holds; False then."""
        if asked.version <= self.granted.reservations.version:
            return False
        self.granted = grant(asked, self.capacity_bytes)
        self.pinned = dict(self.granted.reservations.pinned)
        self._add_up()
        return True

    def unpin(self, key: AdapterKey) -> None:
        """It is pinned no more, if it was."""
        if self.pinned.pop(key, None) is not None:
            self._add_up()

    def most_bytes(self, key: AdapterKey) -> int:
        """The most bytes that this adapter can have and still be loaded, if nothing is leased."""
        own = self.other_pinned_bytes(key)
        of_others = sum(self._promised.values()) - self._promised.get(key.tenant, 0)
        room, cap = self.capacity_bytes - own - of_others, self.cap(key.tenant)
        return room if cap is None else min(room, cap - own)

    def other_pinned_bytes(self, key: AdapterKey) -> int:
        """Bytes of what this adapter's tenant has pinned beside it."""
        return self._own_pins.get(key.tenant, 0) - self.pinned.get(key, 0)

    def _add_up(self) -> None:
        own = Counter[str]()
        for key, num_bytes in self.pinned.items():
            own[key.tenant] += num_bytes
        self._own_pins = dict(own)
        tenants = own.keys() | self.floors.keys()
        self._promised = {t: max(own[t], self.floors.get(t, 0)) for t in tenants}
