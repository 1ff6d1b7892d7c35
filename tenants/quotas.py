"""Quotas: a reservation is a row with identity, never a counter delta.

A request reserves its worst case before it runs and settles what it used when it ends. Both are
idempotent; a hold that nobody settles gives its slot back when its lease is over.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from loraplex.tenants.bucket import Bucket
from loraplex.tenants.errors import (
    Dimension,
    HoldConflict,
    QuotaExceeded,
    RequestExceedsLimit,
)
from loraplex.tenants.limits import Limits, TenantLimits

__all__ = [
    "Hold",
    "HoldConflict",
    "InUse",
    "Limits",
    "MemoryQuotas",
    "QuotaExceeded",
    "Quotas",
    "Rate",
    "RequestExceedsLimit",
    "Reservation",
    "TenantLimits",
]

NS_PER_S = 1_000_000_000
CONCURRENCY_RETRY_S = 1.0
"""When a slot becomes free is not known; a second is what clients wait by default."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one request asks for before it runs."""

    request_id: str
    tenant_id: str
    limits: TenantLimits
    """The tenant's own limits; quotas fill in the platform's defaults."""
    tokens: int
    """Worst case, ≥ 1: prompt tokens plus the cap on output tokens."""
    slots: int = 1
    """What it counts for in the limit on concurrency: choices that run at the same time, ≥ 1."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"a reservation needs at least one token, got {self.tokens}")
        if self.slots < 1:
            raise ValueError(f"a reservation needs at least one slot, got {self.slots}")

    def refuse_impossible(self, limits: Limits) -> None:
        """Raise RequestExceedsLimit if no wait would make it fit."""
        if self.tokens > limits.tokens_per_minute:
            raise RequestExceedsLimit("tokens", limits.tokens_per_minute, self.tokens)
        if self.slots > limits.concurrency:
            raise RequestExceedsLimit("concurrency", limits.concurrency, self.slots)


@dataclass(frozen=True, slots=True)
class Rate:
    """State of one limit per minute after a reservation, as the rate-limit headers tell it."""

    limit: int
    remaining: int
    """What still fits now."""
    reset_s: float
    """Time until the whole limit is free again."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A reservation that was made; settle or release it exactly when the request has ended."""

    request_id: str
    tenant_id: str
    tokens: int
    requests_rate: Rate
    tokens_rate: Rate


@dataclass(frozen=True, slots=True)
class InUse:
    """Open holds of one tenant."""

    requests: int
    tokens: int
    """Sum of what the open holds reserved; so are the slots."""
    slots: int


class Quotas(Protocol):
    """Admission of requests against the limits of their tenants.

    Every method of a store that other processes share may raise QuotaBackendUnavailable.
    """

    async def reserve(self, request: Reservation) -> Hold:
        """Hold the slots, one request and the tokens: all of them, or nothing.

        The same request again, while its hold is open, returns that hold and takes nothing.

        Raises:
            QuotaExceeded: a limit is used up for now; nothing was taken.
            RequestExceedsLimit: tokens or slots exceed the whole limit; it can never succeed.
            HoldConflict: the request id holds something else.
        """
        ...

    async def renew(self, hold: Hold) -> None:
        """Extend the lease of an open hold, from now; a request that runs long calls this."""
        ...

    async def settle(self, hold: Hold, actual_tokens: int) -> None:
        """End the hold and give back the tokens that were not used; no effect once it ended.

        Should the request have used more than it reserved, that is taken too.
        """
        ...

    async def release(self, hold: Hold) -> None:
        """End the hold of a request that never ran: all is given back, the request too."""
        ...

    async def in_use(self, tenant_id: str) -> InUse:
        """Return what the tenant's open holds reserve."""
        ...

    async def check(self) -> None:
        """Raise AssertionError unless open holds and what is in use agree everywhere."""
        ...


@dataclass(slots=True)
class _Lease:
    hold: Hold
    slots: int
    expires_ns: int


class _Tenant:
    """State of one tenant: an open hold is in the leases and in both buckets, or in none."""

    def __init__(self, limits: Limits, now_ns: int) -> None:
        self.requests = Bucket(limits.requests_per_minute, now_ns)
        self.tokens = Bucket(limits.tokens_per_minute, now_ns)
        self.leases: dict[str, _Lease] = {}

    @property
    def num_slots(self) -> int:
        """Slots of all open holds."""
        return sum(lease.slots for lease in self.leases.values())

    def advance(self, now_ns: int) -> None:
        """Let time pass; a lease that is over frees its slots, its tokens count as used."""
        self.requests.advance(now_ns)
        self.tokens.advance(now_ns)
        for request_id in [i for i, held in self.leases.items() if held.expires_ns <= now_ns]:
            self.close(request_id, refund_requests=0, refund_tokens=0)

    def refuse_what_does_not_fit(self, asked: Reservation, limits: Limits) -> None:
        """Raise QuotaExceeded for the limit that takes longest to make room."""
        waits: list[tuple[float, Dimension, int]] = [
            (self.requests.wait_ns(1) / NS_PER_S, "requests", limits.requests_per_minute),
            (self.tokens.wait_ns(asked.tokens) / NS_PER_S, "tokens", limits.tokens_per_minute),
        ]
        if self.num_slots + asked.slots > limits.concurrency:
            waits.append((CONCURRENCY_RETRY_S, "concurrency", limits.concurrency))
        retry_after_s, dimension, limit = max(waits)
        if retry_after_s > 0:
            raise QuotaExceeded(dimension, limit, retry_after_s)

    def close(self, request_id: str, *, refund_requests: int, refund_tokens: int) -> None:
        del self.leases[request_id]
        self.requests.close(request_id, refund_requests)
        self.tokens.close(request_id, refund_tokens)


class MemoryQuotas:
    """Quotas of one process; they are lost with it, and so are the requests that held them."""

    def __init__(
        self, defaults: Limits, clock_ns: Callable[[], int], lease_s: float = 600.0
    ) -> None:
        """Take the platform's limits, a monotonic clock (ns) and how long a lease lasts."""
        self._defaults = defaults
        self._clock_ns = clock_ns
        self._lease_ns = round(lease_s * NS_PER_S)
        self._tenants: dict[str, _Tenant] = {}

    async def reserve(self, request: Reservation) -> Hold:
        """See `Quotas.reserve`."""
        limits = request.limits.over(self._defaults)
        request.refuse_impossible(limits)
        now_ns = self._clock_ns()
        tenant = self._tenants.setdefault(request.tenant_id, _Tenant(limits, now_ns))
        tenant.advance(now_ns)
        tenant.requests.limit = limits.requests_per_minute
        tenant.tokens.limit = limits.tokens_per_minute
        if request.request_id in tenant.leases:
            return confirm_size(tenant.leases[request.request_id].hold, request)
        tenant.refuse_what_does_not_fit(request, limits)
        tenant.requests.take(request.request_id, 1)
        tenant.tokens.take(request.request_id, request.tokens)
        hold = Hold(
            request_id=request.request_id,
            tenant_id=request.tenant_id,
            tokens=request.tokens,
            requests_rate=_rate(tenant.requests),
            tokens_rate=_rate(tenant.tokens),
        )
        tenant.leases[request.request_id] = _Lease(hold, request.slots, now_ns + self._lease_ns)
        return hold

    async def renew(self, hold: Hold) -> None:
        """See `Quotas.renew`."""
        tenant = self._holder(hold)
        if tenant is not None:
            tenant.leases[hold.request_id].expires_ns = self._clock_ns() + self._lease_ns

    async def settle(self, hold: Hold, actual_tokens: int) -> None:
        """See `Quotas.settle`."""
        if actual_tokens < 0:
            raise ValueError(f"actual_tokens must not be negative, got {actual_tokens}")
        tenant = self._holder(hold)
        if tenant is not None:
            unused = hold.tokens - actual_tokens
            tenant.close(hold.request_id, refund_requests=0, refund_tokens=unused)

    async def release(self, hold: Hold) -> None:
        """See `Quotas.release`."""
        tenant = self._holder(hold)
        if tenant is not None:
            tenant.close(hold.request_id, refund_requests=1, refund_tokens=hold.tokens)

    async def in_use(self, tenant_id: str) -> InUse:
        """See `Quotas.in_use`."""
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            return InUse(0, 0, 0)
        tenant.advance(self._clock_ns())
        tokens = sum(lease.hold.tokens for lease in tenant.leases.values())
        return InUse(len(tenant.leases), tokens, tenant.num_slots)

    async def check(self) -> None:
        """See `Quotas.check`."""
        for tenant_id, tenant in self._tenants.items():
            for bucket in (tenant.requests, tenant.tokens):
                floors = list(bucket.floors.values())
                assert bucket.floors.keys() == tenant.leases.keys(), tenant_id
                assert sorted(floors, reverse=True) == floors, tenant_id
                assert all(0 <= floor <= bucket.level for floor in floors), tenant_id

    def _holder(self, hold: Hold) -> _Tenant | None:
        """Return the state that has this hold open, up to date, or None once the hold ended."""
        tenant = self._tenants.get(hold.tenant_id)
        if tenant is None:
            return None
        tenant.advance(self._clock_ns())
        lease = tenant.leases.get(hold.request_id)
        return tenant if lease is not None and lease.hold == hold else None


def confirm_size(hold: Hold, request: Reservation) -> Hold:
    """Return the hold that the request's id has. Raises HoldConflict if it has another size."""
    if hold.tokens != request.tokens:
        raise HoldConflict(
            f"Request {request.request_id} already holds {hold.tokens} tokens, "
            f"so it cannot reserve {request.tokens}; give each request an id of its own."
        )
    return hold


def _rate(bucket: Bucket) -> Rate:
    return Rate(bucket.limit, bucket.remaining(), bucket.reset_ns() / NS_PER_S)
