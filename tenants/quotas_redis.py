"""Quotas that several gateways share, in Redis 6.2 or newer or in Valkey, one server or a cluster.

The store is a disposable cache. Should it lose its data, then requests that are open are counted no
longer in rates and gauges, which allow one more burst, and budgets are unknown until they are
reckoned from the database. So it is with what scripts cannot read, of the limits of that call
alone. It must not evict keys: `maxmemory-policy noeviction`.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Self, cast

import msgspec

from loraplex.tenants.errors import (
    BudgetExhausted,
    BudgetsUnknown,
    QuotaExceeded,
    QuotaStateUnreadable,
)
from loraplex.tenants.quotas import FULL_RETRY_S, KEEP_BUDGETS, LEASE_S, InUse, confirm_size
from loraplex.tenants.redis_scripts import RedisScripts, Script
from loraplex.tenants.reservations import (
    NOTHING,
    Amounts,
    Hold,
    LapsedReservation,
    Reckoning,
    Reservation,
)
from loraplex.tenants.scoped_limits import BUDGETS, Dimension, Scope, ScopedLimit
from loraplex.tenants.standings import Standing

_log = logging.getLogger(__name__)

MS_PER_S = 1000
_STATE = "quotas_state.lua"
_ENDED = ":ended:"
_FOUND = ":found:"
_OF_REQUESTS = (_ENDED.encode(), _FOUND.encode())
_RESERVED = ":reserved"


class RedisQuotas:
    """Quotas with a key per limit under the tenant's hash tag, changed by scripts in one call.

    Time is the server's. Levels are in unit·ms where those of `MemoryQuotas` are in unit·ns, so
    that Lua's numbers, which are exact up to 2⁵³, hold the highest limit. Each call costs time in
    proportion to the open holds that its limits count.

    A budget is known only to the run of the server that it was seeded in: one that was started
    again, or a replica that took over, may lack what was written last.
    """

    def __init__(
        self,
        scripts: RedisScripts,
        lease_s: float = LEASE_S,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        """Take what runs the scripts; use `open`.

        `clock_ms` replaces the server's clock, the only one that all gateways share, in tests.
        """
        self._scripts = scripts
        self._lease_ms = round(lease_s * MS_PER_S)
        self._clock_ms = clock_ms
        self._reserve = Script.of(_STATE, "quotas_reserve.lua")
        self._settle = Script.of(_STATE, "quotas_settle.lua")
        self._read = Script.of(_STATE, "quotas_read.lua")
        self._read_budget = Script.of(_STATE, "quotas_read_budget.lua")
        self._seed = Script.of(_STATE, "quotas_seed.lua")
        self._lapsed = Script.of(_STATE, "quotas_lapsed.lua")

    @classmethod
    def open(
        cls,
        url: str,
        lease_s: float = LEASE_S,
        clock_ms: Callable[[], int] | None = None,
    ) -> Self:
        """Prepare the quotas of this URL; connections open when first used.

        Raises:
            QuotaBackendUnavailable: the URL is wrong.
        """
        return cls(RedisScripts.open(url), lease_s, clock_ms)

    @property
    def is_degraded(self) -> bool:
        """See `Quotas.is_degraded`; never: a call that fails says so."""
        return False

    async def ping(self) -> None:
        """Raise QuotaBackendUnavailable unless the store answers."""
        await self._scripts.ping()

    async def warn_of_eviction(self) -> None:
        """Log a warning if a server may remove what it holds."""
        policies = await self._scripts.eviction_policies() - {"noeviction"}
        if policies:
            _log.warning(
                "the quota store may forget limits that are in use, since its maxmemory-policy is "
                "%s: set it to noeviction",
                ", ".join(sorted(policies)),
            )

    async def close(self) -> None:
        """Close all connections."""
        await self._scripts.close()

    async def reserve(self, request: Reservation) -> Hold:
        """See `Quotas.reserve`. Raises QuotaBackendUnavailable too, like all methods."""
        request.refuse_impossible()
        limits = [_asked(limit, request.worst) for limit in request.limits]
        verdict, *told = await self._run(
            self._reserve,
            request.tenant_id,
            request.limits,
            id=request.request_id,
            size=_size(request.worst),
            lease_ms=self._lease_ms,
            gauge_wait_ms=round(FULL_RETRY_S * MS_PER_S),
            limits=limits,
        )
        if verdict == b"held":
            return _hold(request, told)
        if verdict == b"conflict":
            confirm_size(request, _amounts(told[0]))
        if verdict == b"unknown":
            raise BudgetsUnknown([request.limits[position - 1] for position in told])
        limit = request.limits[told[0] - 1]
        if limit.budget is not None:
            raise BudgetExhausted(limit, limit.budget.period.end)
        raise QuotaExceeded(limit, told[1] / MS_PER_S)

    async def renew(self, hold: Hold) -> None:
        """See `Quotas.renew`."""
        await self._change(hold, NOTHING, lease_ms=self._lease_ms)

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        """See `Quotas.settle`."""
        await self._change(hold, actual)

    async def release(self, hold: Hold) -> None:
        """See `Quotas.release`."""
        await self._change(hold, NOTHING)

    async def seed(self, tenant_id: str, reckonings: Sequence[Reckoning]) -> None:
        """See `Quotas.seed`."""
        keep_ms = round(KEEP_BUDGETS.total_seconds()) * MS_PER_S
        told = [
            {
                "epoch": _epoch(each.limit),
                "dimension": each.limit.dimension,
                "spent": each.spent,
                "reserved": [item for pair in each.reserved.items() for item in pair],
                "keep_until_ms": _end_ms(each.limit) + keep_ms,
            }
            for each in reckonings
        ]
        keys_of = [each.limit for each in reckonings]
        await self._run(self._seed, tenant_id, keys_of, lease_ms=self._lease_ms, limits=told)

    async def lapsed(self, tenant_id: str, most: int) -> tuple[LapsedReservation, ...]:
        """See `Quotas.lapsed`."""
        members: list[bytes] = await self._run(
            self._lapsed, tenant_id, (), lapsed_ms=self._lease_ms, most=most
        )
        return tuple(_lapsed(member.decode(), tenant_id) for member in members)

    async def standings(
        self, tenant_id: str, limits: Sequence[ScopedLimit]
    ) -> tuple[Standing, ...]:
        """See `Quotas.standings`."""
        asked = [_asked(limit, NOTHING) for limit in limits]
        _, _, *told = await self._run(self._read, tenant_id, limits, id="", limits=asked)
        return tuple(
            _standing(limit, used, reset_ms)
            for limit, (is_known, used, reset_ms) in zip(limits, _threes(told), strict=True)
            if is_known
        )

    async def reckoned(self, tenant_id: str, limit: ScopedLimit) -> Reckoning | None:
        """See `Quotas.reckoned`."""
        told = await self._run(self._read_budget, tenant_id, [limit], id="", epoch=_epoch(limit))
        if not told:
            return None
        fields = dict(zip(told[::2], map(int, told[1::2]), strict=True))
        reserved = {name[2:].decode(): n for name, n in fields.items() if name.startswith(b"r:")}
        return Reckoning(limit, fields[b"spent"], reserved)

    async def held(self, tenant_id: str) -> dict[str, Amounts]:
        """See `Quotas.held`."""
        ids, sizes, *_ = await self._run(self._read, tenant_id, (), id="", limits=[])
        return {id_.decode(): _amounts(size) for id_, size in zip(ids, sizes, strict=True)}

    async def in_use(self, tenant_id: str) -> InUse:
        """See `Quotas.in_use`."""
        return InUse.of(list((await self.held(tenant_id)).values()))

    async def check(self) -> None:
        """See `Quotas.check`."""
        reserved, leased = set[bytes](), set[bytes]()
        async for key, value in self._scripts.each("{t:*}:*"):
            if isinstance(value, dict):
                _check_budget(value, key)
                reserved |= {b"%b %b" % (key, i[2:]) for i in value if i.startswith(b"r:")}
            elif isinstance(value, set):
                leased |= value
            elif value is not None and not any(part in key for part in _OF_REQUESTS):
                _check(msgspec.msgpack.decode(value), key)
        assert reserved <= leased, reserved - leased

    async def _change(self, hold: Hold, actual: Amounts, **told: int) -> None:
        asked = hold.reservation
        limits = [
            {
                "kind": limit.kind,
                "value": limit.value,
                "dimension": limit.dimension,
                "refund": asked.worst.of(limit.dimension) - actual.of(limit.dimension),
            }
            for limit in asked.limits
        ]
        await self._run(
            self._settle,
            asked.tenant_id,
            asked.limits,
            id=hold.request_id,
            size=_size(asked.worst),
            spent={dimension: actual.of(dimension) for dimension in BUDGETS},
            limits=limits,
            **told,
        )

    async def _run(
        self,
        script: Script,
        tenant_id: str,
        keys_of: Sequence[ScopedLimit],
        **asked: object,
    ) -> Any:  # noqa: ANN401  each script answers in its own way
        if self._clock_ms is not None:
            asked["now_ms"] = self._clock_ms()
        asked["ended"] = f"{{t:{tenant_id}}}{_ENDED}"
        asked["found"] = f"{{t:{tenant_id}}}{_FOUND}"
        asked["reserved"] = f"{{t:{tenant_id}}}{_RESERVED}"
        keys = [f"{{t:{tenant_id}}}:holds", *(_key(tenant_id, limit) for limit in keys_of)]
        told = msgspec.msgpack.encode(asked)
        try:
            return await self._scripts.run(script, keys, told)
        except QuotaStateUnreadable as error:
            _log.exception("what the quota store has of tenant %s is thrown away", tenant_id)
            await self._scripts.forget(keys)
            try:
                return await self._scripts.run(script, keys, told)
            except QuotaStateUnreadable:
                raise error from None


def _key(tenant_id: str, limit: ScopedLimit) -> str:
    """Return a limit's key; in a cluster all keys of one hash tag are on one node."""
    key = f"{{t:{tenant_id}}}:{limit.scope}:{limit.scope_id}:{limit.dimension}"
    return key if limit.budget is None else f"{key}:{limit.budget.period.start:%Y-%m-%dT%H:%M:%S}"


def _lapsed(member: str, tenant_id: str) -> LapsedReservation:
    key, request_id = member.split(" ", maxsplit=1)
    scope, scope_id, dimension, start = key.removeprefix(f"{{t:{tenant_id}}}:").split(":", 3)
    return LapsedReservation(
        scope=cast("Scope", scope),
        scope_id=scope_id,
        dimension=cast("Dimension", dimension),
        period_start=datetime.fromisoformat(start).replace(tzinfo=UTC),
        request_id=request_id,
    )


def _asked(limit: ScopedLimit, worst: Amounts) -> dict[str, object]:
    asked: dict[str, object] = {
        "kind": limit.kind,
        "amount": worst.of(limit.dimension),
        "value": limit.value,
        "burst": limit.burst,
        "is_enforced": limit.mode == "enforce",
    }
    if limit.budget is not None:
        asked |= {"epoch": _epoch(limit), "end_ms": _end_ms(limit)}
    return asked


def _epoch(limit: ScopedLimit) -> str:
    assert limit.budget is not None, f"{limit.name} is a budget without a month"
    return str(limit.budget.epoch)


def _end_ms(limit: ScopedLimit) -> int:
    assert limit.budget is not None, f"{limit.name} is a budget without a month"
    return round(limit.budget.period.end.timestamp()) * MS_PER_S


def _size(worst: Amounts) -> str:
    """Return amounts as a script compares them."""
    tokens = f"{worst.input_tokens} {worst.output_tokens}"
    return f"{tokens} {worst.cost_micros} {worst.slots} {worst.requests}"


def _amounts(size: bytes) -> Amounts:
    return Amounts(*(int(number) for number in size.split()))


def _hold(request: Reservation, told: list[int]) -> Hold:
    standings, shadowed = [], []
    for limit, (used, reset_ms, is_held) in zip(request.limits, _threes(told), strict=True):
        standings.append(_standing(limit, used, reset_ms))
        fits = used <= limit.value if limit.kind == "budget" else is_held
        if limit.mode == "shadow" and not fits:
            shadowed.append(limit)
    return Hold(request, tuple(standings), tuple(shadowed))


def _threes(told: list[int]) -> Iterator[tuple[int, int, int]]:
    return zip(told[::3], told[1::3], told[2::3], strict=True)


def _standing(limit: ScopedLimit, used: int, reset_ms: int) -> Standing:
    most = limit.burst if limit.kind == "rate" else limit.value
    return Standing(limit, used, max(0, most - used), reset_ms / MS_PER_S)


def _check_budget(told: dict[bytes, bytes], key: bytes) -> None:
    reserved = sum(int(amount) for name, amount in told.items() if name.startswith(b"r:"))
    assert int(told[b"reserved"]) == reserved, key


def _check(state: dict[str, Any], key: bytes) -> None:
    num_holds = len(set(state["ids"]))
    floors = state.get("floors", [])
    for column in ("sizes", "floors", "amounts", "ends_ms"):
        assert len(state.get(column, state["ids"])) == num_holds, key
    assert sorted(floors, reverse=True) == floors, key
    assert all(0 <= floor <= state["level"] for floor in floors), key
