"""How limits stand in one process: what each counts, of which requests."""

from dataclasses import dataclass, field
from typing import Protocol

from loraplex.tenants.bucket import Bucket
from loraplex.tenants.quotas import FULL_RETRY_S
from loraplex.tenants.scoped_limits import ScopedLimit
from loraplex.tenants.standings import Standing

NS_PER_S = 1_000_000_000
FULL_RETRY_NS = round(FULL_RETRY_S * NS_PER_S)


class LimitState(Protocol):
    """What is common to all kinds of limits. A request's id is counted at most once."""

    def advance(self, now_ns: int) -> None:
        """Let time pass."""
        ...

    def follow(self, limit: ScopedLimit) -> None:
        """Take over the limit's values, from now on."""
        ...

    def holds(self, request_id: str) -> bool:
        """Whether it counts the request as open."""
        ...

    def wait_ns(self, limit: ScopedLimit, amount: int) -> int:
        """Return the time until the amount fits, as far as is known; 0 if it does now."""
        ...

    def take(self, request_id: str, amount: int) -> None:
        """Count a request that it does not hold."""
        ...

    def end(self, request_id: str, worst: int, actual: int, /) -> None:
        """Count `actual` instead of `worst`; no effect on a request that it does not hold."""
        ...

    def lapse(self, request_id: str) -> None:
        """Do what the end of a lease means."""
        ...

    def standing(self, limit: ScopedLimit, seconds_left: float, /) -> Standing:
        """Return how it stands; `seconds_left` is what is left of a budget's period."""
        ...

    def is_idle(self) -> bool:
        """Whether it is as a new one would be."""
        ...


@dataclass(slots=True)
class RateState:
    """A rate: a bucket."""

    bucket: Bucket

    def advance(self, now_ns: int) -> None:
        """See `LimitState.advance`."""
        self.bucket.advance(now_ns)

    def follow(self, limit: ScopedLimit) -> None:
        """See `LimitState.follow`."""
        self.bucket.limit, self.bucket.burst = limit.value, limit.burst

    def holds(self, request_id: str) -> bool:
        """See `LimitState.holds`."""
        return request_id in self.bucket.floors

    def wait_ns(self, limit: ScopedLimit, amount: int) -> int:
        """See `LimitState.wait_ns`."""
        # Only in shadow mode a limit of 0 is asked.
        return self.bucket.wait_ns(amount) if limit.value else FULL_RETRY_NS

    def take(self, request_id: str, amount: int) -> None:
        """See `LimitState.take`."""
        self.bucket.take(request_id, amount)

    def end(self, request_id: str, worst: int, actual: int) -> None:
        """See `LimitState.end`."""
        if self.holds(request_id):
            self.bucket.close(request_id, worst - actual)

    def lapse(self, request_id: str) -> None:
        """Count it as used in full."""
        self.end(request_id, 0, 0)

    def standing(self, limit: ScopedLimit, _seconds_left: float) -> Standing:
        """See `LimitState.standing`."""
        used = self.bucket.used()
        remaining = max(0, limit.burst - used)
        return Standing(limit, used, remaining, self.bucket.reset_ns() / NS_PER_S)

    def is_idle(self) -> bool:
        """See `LimitState.is_idle`."""
        return self.bucket.level == 0 and not self.bucket.floors


@dataclass(slots=True)
class GaugeState:
    """What is open at a time."""

    amounts: dict[str, int] = field(default_factory=dict)
    used: int = 0

    def advance(self, now_ns: int) -> None:
        """Time alone changes nothing."""

    def follow(self, limit: ScopedLimit) -> None:
        """Nothing depends on its values."""

    def holds(self, request_id: str) -> bool:
        """See `LimitState.holds`."""
        return request_id in self.amounts

    def wait_ns(self, limit: ScopedLimit, amount: int) -> int:
        """See `LimitState.wait_ns`."""
        return FULL_RETRY_NS if self.used + amount > limit.value else 0

    def take(self, request_id: str, amount: int) -> None:
        """See `LimitState.take`."""
        self.amounts[request_id] = amount
        self.used += amount

    def end(self, request_id: str, _worst: int, _actual: int) -> None:
        """Free what it took, whatever it was."""
        self.used -= self.amounts.pop(request_id, 0)

    def lapse(self, request_id: str) -> None:
        """Free it."""
        self.end(request_id, 0, 0)

    def standing(self, limit: ScopedLimit, _seconds_left: float) -> Standing:
        """See `LimitState.standing`."""
        return Standing(limit, self.used, max(0, limit.value - self.used), 0.0)

    def is_idle(self) -> bool:
        """See `LimitState.is_idle`."""
        return not self.amounts


@dataclass(slots=True)
class BudgetState:
    """A month's budget, as it was reckoned under an epoch and counted since."""

    epoch: int
    spent: int
    reserved: dict[str, int]
    sum_reserved: int

    def advance(self, now_ns: int) -> None:
        """Time alone changes nothing."""

    def follow(self, limit: ScopedLimit) -> None:
        """Nothing depends on its values."""

    def holds(self, request_id: str) -> bool:
        """See `LimitState.holds`."""
        return request_id in self.reserved

    def wait_ns(self, limit: ScopedLimit, amount: int) -> int:
        """See `LimitState.wait_ns`."""
        return FULL_RETRY_NS if self.spent + self.sum_reserved + amount > limit.value else 0

    def take(self, request_id: str, amount: int) -> None:
        """See `LimitState.take`."""
        self.reserved[request_id] = amount
        self.sum_reserved += amount

    def end(self, request_id: str, _worst: int, actual: int) -> None:
        """Spend `actual` instead of what was reserved."""
        if self.holds(request_id):
            self.sum_reserved -= self.reserved.pop(request_id)
            self.spent += actual

    def lapse(self, request_id: str) -> None:
        """Keep it: whether it was spent is not known before somebody settles it."""

    def standing(self, limit: ScopedLimit, seconds_left: float) -> Standing:
        """See `LimitState.standing`."""
        used = self.spent + self.sum_reserved
        return Standing(limit, used, max(0, limit.value - used), seconds_left)

    def is_idle(self) -> bool:
        """See `LimitState.is_idle`; a budget's new state is none at all."""
        return False
