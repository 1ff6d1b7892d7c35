"""How long a request waited, and for what."""

from collections.abc import Mapping
from typing import Literal

Reason = Literal["slot", "kv", "adapter_memory", "share", "deadline", "step", "load"]
"""What a request waits for:

    slot            as many requests run as may
    kv              KV blocks, its own or those of a request that comes before it
    adapter_memory  memory for its adapter, or as above
    share           its tenant's turn: others have had less of the machine
    deadline        a step that would have made a running request's next token late
    step            a step that was full
    load            its adapter was on its way
"""


class WaitClock:
    """Adds up the time since it was made, by reason.

    A clock says why by itself, or follows another. So one change of a clock that many follow is
    one change, however many they are: the worker's says why nobody more can start, a tenant's says
    why none of its requests may, and a request's follows its tenant's. Times are in s, sums in ms.
    """

    __slots__ = ("_base_ms", "_leader", "_reason", "_since", "_sums_ms")

    def __init__(self, now: float, leader: "WaitClock | None" = None) -> None:
        self._sums_ms: dict[Reason, float] = {}
        self._leader = leader
        self._reason: Reason | None = None
        self._since = now
        self._base_ms = {} if leader is None else leader.sums_ms(now)

    @property
    def leader(self) -> "WaitClock | None":
        """The clock that it follows."""
        return self._leader

    def switch(self, reason: Reason | None, now: float) -> None:
        """From now on wait for `reason`; None follows the leader."""
        if reason != self._reason:
            self._turn(reason, self._leader, now)

    def follow(self, leader: "WaitClock", now: float) -> None:
        """From now on follow another clock, wherever this one has no reason of its own."""
        self._turn(self._reason, leader, now)

    def stop(self, now: float) -> None:
        """Wait no more, until it follows a clock again."""
        self._turn(None, None, now)

    def sums_ms(self, now: float) -> dict[Reason, float]:
        """What it waited until now, by reason; reasons that it never had are not in it."""
        sums = dict(self._sums_ms)
        if self._reason is not None:
            sums[self._reason] = sums.get(self._reason, 0.0) + max(0.0, now - self._since) * 1e3
        elif self._leader is not None:
            for reason, ms in self._leader.sums_ms(now).items():
                more = ms - self._base_ms.get(reason, 0.0)
                if more > 0:
                    sums[reason] = sums.get(reason, 0.0) + more
        return sums

    def reason(self) -> Reason | None:
        """What it waits for now."""
        if self._reason is not None or self._leader is None:
            return self._reason
        return self._leader.reason()

    def _turn(self, reason: Reason | None, leader: "WaitClock | None", now: float) -> None:
        self._sums_ms = self.sums_ms(now)
        self._reason, self._leader, self._since = reason, leader, now
        self._base_ms = {} if reason is not None or leader is None else leader.sums_ms(now)


def named(sums_ms: Mapping[Reason, float]) -> dict[str, float]:
    """Sums as they are sent: by name, to the microsecond."""
    return {str(reason): round(ms, 3) for reason, ms in sums_ms.items()}
