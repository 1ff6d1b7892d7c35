"""Quotas that hold, each limit as it says, while the store that gateways share is away."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from loraplex.tenants.errors import (
    QuotaBackendUnavailable,
    QuotaExceeded,
    QuotaStateUnreadable,
)
from loraplex.tenants.quotas import InUse, Quotas
from loraplex.tenants.quotas_memory import MemoryQuotas
from loraplex.tenants.reservations import (
    NOTHING,
    Amounts,
    Hold,
    LapsedReservation,
    Reckoning,
    Reservation,
)
from loraplex.tenants.scoped_limits import ScopedLimit
from loraplex.tenants.standings import Standing

_log = logging.getLogger(__name__)

PROBE_EVERY_S = 1.0
MAX_PENDING = 100_000
"""Holds that ended while the store was away and are settled in it later; of more the oldest end
there with their leases, and their budgets with the next reckoning."""


class SharedQuotas(Quotas, Protocol):
    """Quotas in a store that may be away."""

    async def ping(self) -> None:
        """Raise QuotaBackendUnavailable unless the store serves."""
        ...


class GuardedQuotas:
    """Quotas of a shared store; while it is away, those that this gateway counts by itself.

    What the store cannot read of one tenant is no loss of it: that tenant's calls fail.

    A limit says what it does then (`ScopedLimit.on_store_loss`). A rate or gauge that is `local` is
    divided by the number of gateways that run, at least 1 for each, and counts only what is asked
    of this one meanwhile. Budgets are left to the database (`Hold.unchecked`).
    """

    def __init__(
        self,
        shared: SharedQuotas,
        local: MemoryQuotas,
        count_gateways: Callable[[], Awaitable[int]],
        probe_every_s: float = PROBE_EVERY_S,
    ) -> None:
        """Take the store, what counts in its place, and who tells how many gateways run.

        `count_gateways` may fail; then the last number is used.
        """
        self._shared = shared
        self._local = local
        self._count_gateways = count_gateways
        self._probe_every_s = probe_every_s
        self._num_gateways: int | None = None
        self._watch: asyncio.Task[None] | None = None
        self._pending: deque[tuple[Hold, Amounts]] = deque(maxlen=MAX_PENDING)

    @property
    def is_degraded(self) -> bool:
        """True while the store is away."""
        return self._watch is not None

    async def restored(self) -> None:
        """Return when the store is used."""
        if self._watch is not None:
            await asyncio.wait([self._watch])

    async def close(self) -> None:
        """Look for the store no longer."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])

    async def reserve(self, request: Reservation) -> Hold:
        """See `Quotas.reserve`.

        Raises:
            QuotaBackendUnavailable: the store is away, and a limit refuses all meanwhile, or the
                request is larger than this gateway's part of it.
        """
        if self._watch is None:
            try:
                return await self._shared.reserve(request)
            except QuotaStateUnreadable:
                raise
            except QuotaBackendUnavailable as error:
                self._lose(error)
        return await self._reserve_locally(request)

    async def renew(self, hold: Hold) -> None:
        """See `Quotas.renew`; what the store cannot be told its lease ends there."""
        if hold.is_degraded:
            await self._local.renew(hold)
        if self._watch is None:
            try:
                await self._shared.renew(hold)
            except QuotaStateUnreadable:
                raise
            except QuotaBackendUnavailable as error:
                self._lose(error)

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        """See `Quotas.settle`; what the store cannot be told now, it is told when it is back."""
        if hold.is_degraded:
            await self._local.settle(hold, actual)
        # The store may know it all the same: by an answer that was lost, or by a reckoning since.
        if self._watch is None:
            try:
                await self._shared.settle(hold, actual)
            except QuotaStateUnreadable:
                raise
            except QuotaBackendUnavailable as error:
                self._lose(error)
            else:
                return
        self._pending.append((hold, actual))

    async def release(self, hold: Hold) -> None:
        """See `Quotas.release`."""
        await self.settle(hold, NOTHING)

    async def seed(self, tenant_id: str, reckonings: Sequence[Reckoning]) -> None:
        """See `Quotas.seed`; a store that is away has no copy of this epoch when it is back."""
        if self._watch is None:
            try:
                await self._shared.seed(tenant_id, reckonings)
            except QuotaStateUnreadable:
                raise
            except QuotaBackendUnavailable as error:
                self._lose(error)

    async def lapsed(self, tenant_id: str, most: int) -> tuple[LapsedReservation, ...]:
        """See `Quotas.lapsed`."""
        return () if self._watch is not None else await self._shared.lapsed(tenant_id, most)

    async def standings(
        self, tenant_id: str, limits: Sequence[ScopedLimit]
    ) -> tuple[Standing, ...]:
        """See `Quotas.standings`."""
        if self._watch is None:
            try:
                return await self._shared.standings(tenant_id, limits)
            except QuotaStateUnreadable:
                raise
            except QuotaBackendUnavailable as error:
                self._lose(error)
        parts = self._parts(limits, await self._divisor())
        standings = await self._local.standings(tenant_id, list(parts))
        return tuple(replace(each, limit=parts[each.limit]) for each in standings)

    async def reckoned(self, tenant_id: str, limit: ScopedLimit) -> Reckoning | None:
        """See `Quotas.reckoned`."""
        return None if self._watch is not None else await self._shared.reckoned(tenant_id, limit)

    async def held(self, tenant_id: str) -> dict[str, Amounts]:
        """See `Quotas.held`; while the store is away, of this gateway's holds since then."""
        counting: Quotas = self._shared if self._watch is None else self._local
        return await counting.held(tenant_id)

    async def in_use(self, tenant_id: str) -> InUse:
        """See `Quotas.in_use`; while the store is away, of this gateway's holds since then."""
        counting: Quotas = self._shared if self._watch is None else self._local
        return await counting.in_use(tenant_id)

    async def check(self) -> None:
        """See `Quotas.check`."""
        await self._local.check()
        if self._watch is None:
            await self._shared.check()

    async def _reserve_locally(self, request: Reservation) -> Hold:
        request.refuse_impossible()
        for limit in request.limits:
            if (limit.on_store_loss, limit.mode) == ("closed", "enforce"):
                raise QuotaBackendUnavailable(f"{limit.told} cannot be checked now.")
        parts = self._parts(request.limits, await self._divisor())
        for part, limit in parts.items():
            if limit.mode == "enforce" and request.worst.of(part.dimension) > part.burst:
                raise QuotaBackendUnavailable(
                    f"{limit.told} cannot be checked now for a request of this size."
                )
        try:
            hold = await self._local.reserve(replace(request, limits=tuple(parts)))
        except QuotaExceeded as error:
            raise QuotaExceeded(parts[error.limit], error.retry_after_s) from None
        return Hold(
            request,
            tuple(replace(each, limit=parts[each.limit]) for each in hold.standings),
            tuple(parts[part] for part in hold.shadowed),
            unchecked=tuple(limit for limit in request.limits if limit.kind == "budget"),
            is_degraded=True,
        )

    def _parts(self, limits: Sequence[ScopedLimit], divisor: int) -> dict[ScopedLimit, ScopedLimit]:
        """This gateway's part of each limit that it counts, and the limit that it is a part of."""
        counted = [
            limit for limit in limits if limit.kind != "budget" and limit.on_store_loss == "local"
        ]
        return {
            replace(
                limit,
                value=_share(limit.value, divisor),
                burst=_share(limit.burst, divisor),
            ): limit
            for limit in counted
        }

    async def _divisor(self) -> int:
        """How many gateways run, as far as is known. Raises QuotaBackendUnavailable."""
        if self._num_gateways is None:
            await self._count()
        if self._num_gateways is None:
            raise QuotaBackendUnavailable(
                "The quota store is away, and the database that tells how many gateways run too."
            )
        return self._num_gateways

    async def _count(self) -> None:
        try:
            self._num_gateways = max(1, await self._count_gateways())
        except Exception as error:  # noqa: BLE001  whatever it is, the last number is used
            _log.warning("how many gateways run is not known: %s", error)

    def _lose(self, error: QuotaBackendUnavailable) -> None:
        if self._watch is None:
            _log.error("limits are counted by this gateway alone from now on: %s", error)
            self._watch = asyncio.create_task(self._until_it_is_back())

    async def _until_it_is_back(self) -> None:
        try:
            await self._count()
            while not await self._is_back():
                await asyncio.sleep(self._probe_every_s)
                await self._count()
            _log.warning("limits are counted in the quota store again")
        finally:
            self._watch = None

    async def _is_back(self) -> bool:
        """Settle in the store what ended meanwhile; False if it is away."""
        try:
            await self._shared.ping()
            while self._pending:
                await self._settle_next()
        except QuotaBackendUnavailable:
            return False
        except Exception:  # noqa: BLE001  it is tried again; without this nobody would
            _log.exception("whether the quota store is back is not known")
            return False
        return True

    async def _settle_next(self) -> None:
        hold, actual = self._pending.popleft()
        try:
            await self._shared.settle(hold, actual)
        except QuotaStateUnreadable as error:
            _log.warning("the hold of request %s ends with its lease: %s", hold.request_id, error)
        except BaseException:
            if len(self._pending) < MAX_PENDING:
                self._pending.appendleft((hold, actual))
            raise


def _share(value: int, divisor: int) -> int:
    """A part of a limit; none of it only if there is none."""
    return max(1, value // divisor) if value else 0
