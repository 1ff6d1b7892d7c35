"""A token bucket in exact integers that takes back what a request reserved and did not use."""

from dataclasses import dataclass, field
from itertools import takewhile

MINUTE_NS = 60_000_000_000
"""What one unit (a request or a token) adds to the level; a minute drains `limit` units."""


@dataclass(slots=True)
class Bucket:
    """How much of a limit per minute is used up, and by which open holds.

    `level` is in unit·ns: a unit adds `MINUTE_NS`, each nanosecond drains `limit`, and at most
    `burst` units fit. With a(u) units taken at time u it is

        level(t) = max over s ≤ t of  Σ_{s ≤ u ≤ t} a(u)·MINUTE_NS − (t − s)·limit

    (or 0), which bounds what any window may hold. A refund is a smaller a(u) in hindsight: it
    lowers the terms with s ≤ u alone. The other terms are the level that the bucket would have,
    had units been taken only after u; each open hold carries that as its floor. So a refund is
    exact: the level is afterwards what it were if the hold had taken only what it used.
    """

    limit: int
    """Units per minute, ≥ 0; may change after `advance`, as `burst` may."""
    burst: int
    """Units that may be used at once, ≥ 0."""
    at_ns: int
    """Time up to which the level is drained."""
    level: int = 0
    floors: dict[str, int] = field(default_factory=dict)
    """Per open hold, oldest first; see above."""

    def advance(self, now_ns: int) -> None:
        """Let the time since the last call pass."""
        drained = max(0, now_ns - self.at_ns) * self.limit
        self.at_ns = max(self.at_ns, now_ns)
        self.level = max(0, self.level - drained)
        for hold_id, floor in self.floors.items():
            self.floors[hold_id] = max(0, floor - drained)

    def wait_ns(self, units: int) -> int:
        """Return the time until `units` (≤ `burst`) fit; 0 if they fit now. `limit` is ≥ 1."""
        excess = self.level + (units - self.burst) * MINUTE_NS
        return max(0, -(-excess // self.limit))

    def take(self, hold_id: str, units: int) -> None:
        """Take `units` for a new hold; the caller has seen that they fit."""
        amount = units * MINUTE_NS
        self.level += amount
        for older, floor in self.floors.items():
            self.floors[older] = floor + amount
        self.floors[hold_id] = 0

    def close(self, hold_id: str, refund: int) -> None:
        """End a hold and give back `refund` of its units (negative: it used more)."""
        floor = self.floors[hold_id]
        returned = refund * MINUTE_NS
        self.level = max(self.level - returned, floor)
        # Only holds older than this one count its units among those that came after them.
        for older in takewhile(lambda other: other != hold_id, list(self.floors)):
            self.floors[older] = max(self.floors[older] - returned, floor)
        del self.floors[hold_id]

    def used(self) -> int:
        """Return how many units have not drained yet; a part of one counts as one."""
        return -(-self.level // MINUTE_NS)

    def reset_ns(self) -> int:
        """Return the time until nothing is used; 0 where nothing drains."""
        return -(-self.level // self.limit) if self.limit else 0
