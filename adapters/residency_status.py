"""How one adapter stands, for those who look."""

from dataclasses import dataclass
from typing import Literal

from loraplex.adapters.demand import Demand
from loraplex.adapters.host_copies import HostCopies
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.tier import Tier

Place = Literal["store", "host", "loading", "device"]
"""The nearest place that has all of it; `loading`: it is on its way to the device."""


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """One adapter."""

    key: AdapterKey
    tier: Place
    device_bytes: int
    host_bytes: int
    leases: int
    """Of requests that run on it, or have begun to wait for it."""
    num_layers: int
    """Layers of it on the device while it loads, of those that it has; 0 until that is known."""
    of_layers: int
    is_pinned: bool
    is_protected: bool
    """Its tenant's floor, of the place where it is, keeps it from others' loads."""
    is_unclaimed: bool
    """It was prefetched, and no request has needed it yet."""
    num_waiting: int
    """Requests that wait and need it."""
    used_s: float | None
    """When a request used it last, by the residency's clock; None if none did since it came."""


def status_of(key: AdapterKey, device: Tier, host: HostCopies, demand: Demand) -> AdapterStatus:
    """Put together what the tiers know."""
    on_device, on_host = device.get(key), host.get(key)
    tier: Place = "store"
    if on_device is not None:
        tier = "device" if on_device.is_there else "loading"
    elif on_host is not None:
        tier = "host"
    return AdapterStatus(
        key=key,
        tier=tier,
        device_bytes=0 if on_device is None else on_device.num_bytes,
        host_bytes=0 if on_host is None else on_host.num_bytes,
        leases=0 if on_device is None else on_device.leases,
        num_layers=0 if on_device is None else on_device.num_layers,
        of_layers=0 if on_device is None else on_device.of_layers,
        is_pinned=on_device is not None and on_device.is_pinned,
        is_protected=(host if tier == "host" else device).is_protected(key),
        is_unclaimed=on_device is not None and on_device.is_unclaimed,
        num_waiting=demand.num_waiting_for(key),
        used_s=None if on_device is None or not on_device.used_s else on_device.used_s,
    )
