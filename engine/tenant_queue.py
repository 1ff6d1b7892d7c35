"""The waiting requests of one tenant, and which of them goes first."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain, islice

from loraplex.adapters.residency import State
from loraplex.engine.request import Request
from loraplex.engine.waits import WaitClock

_MAX_LOOKED_AT = 32
"""Requests that are asked for their adapters' states before the first in order is taken."""


class TenantQueue:
    """Order: those that were preempted; then by service tier; then the program that has had least
    of the machine; then arrival. Within a tier a resident adapter goes before one that is not.

    The oldest request is overtaken at most `max_skips` times by later ones, then it is first, so
    that neither a tier nor a program nor an adapter starves. `attained_ms` tells what a program has
    had.
    """

    def __init__(
        self,
        clock: WaitClock,
        max_skips: int,
        attained_ms: Callable[[str], float],
    ) -> None:
        self.weight = 1.0
        """The tenant's share."""
        self.clock = clock
        self.max_skips = max_skips
        self._attained_ms = attained_ms
        self._by_age: OrderedDict[str, Request] = OrderedDict()
        self._preempted: OrderedDict[str, Request] = OrderedDict()
        self._programs: dict[bool, dict[str, OrderedDict[str, Request]]] = {True: {}, False: {}}
        self._num_skips = 0
        self._found: tuple[int, Request | None] | None = None
        """What `first` found last, in which version of adapters' states; until something changes.
        """

    def __len__(self) -> int:
        return len(self._by_age) + len(self._preempted)

    @property
    def num_skips(self) -> int:
        """Times that the oldest request was overtaken."""
        return self._num_skips

    def requests(self) -> list[Request]:
        """All of them, oldest first."""
        return [*self._preempted.values(), *self._by_age.values()]

    def before(self, request: Request) -> list[Request]:
        """Those that are likely to go before one that comes now."""
        if request.submission.submit.service_tier != "priority":
            return self.requests()
        urgent = (program.values() for program in self._programs[True].values())
        return [*self._preempted.values(), *chain.from_iterable(urgent)]

    def oldest(self, at_most: int) -> Iterator[Request]:
        """So many of them, oldest first."""
        return islice(chain(self._preempted.values(), self._by_age.values()), at_most)

    def add(self, request: Request) -> None:
        """Take a request that has just arrived."""
        self._found = None
        self._by_age[request.key] = request
        submit = request.submission.submit
        programs = self._programs[submit.service_tier == "priority"]
        programs.setdefault(submit.program, OrderedDict())[request.key] = request

    def put_back(self, request: Request) -> None:
        """Take a request that was preempted: it is older than all that wait."""
        self._found = None
        self._preempted[request.key] = request
        self._preempted.move_to_end(request.key, last=False)

    def remove(self, request: Request) -> None:
        """Forget a request that ended while it waited."""
        self._found = None
        if self._preempted.pop(request.key, None) is not None:
            return
        if self._oldest() is request:
            self._num_skips = 0
        del self._by_age[request.key]
        submit = request.submission.submit
        programs = self._programs[submit.service_tier == "priority"]
        del programs[submit.program][request.key]
        if not programs[submit.program]:
            del programs[submit.program]

    def take(self, request: Request) -> None:
        """Remove a request that goes first, and count whether it overtook the oldest."""
        if request.key in self._by_age and self._oldest() is not request:
            self._num_skips += 1
        self.remove(request)

    def may_overtake(self, request: Request, state: Callable[[Request], State]) -> bool:
        """True if a waiting request may go before all that are older."""
        if request.key in self._preempted or self._num_skips < self.max_skips:
            return True
        oldest = self._oldest()
        return request is oldest or state(oldest) is State.LOADING

    def first_known(self, state: Callable[[Request], State], version: int) -> Request | None:
        """What `first` says; `version` changes with `state`."""
        if self._found is not None and self._found[0] == version:
            return self._found[1]
        request = self.first(state)
        if all(len(programs) < 2 for programs in self._programs.values()):
            self._found = version, request  # else it changes with what programs have had
        return request

    def first(
        self, state: Callable[[Request], State], *, resident_only: bool = False
    ) -> Request | None:
        """The request to try next; None if each waits for an adapter that is on its way, or, where
        only resident ones count, for one that is not there."""
        wanted = (State.RESIDENT,) if resident_only else (State.RESIDENT, State.ABSENT)
        for request in self._preempted.values():
            if state(request) in wanted:
                return request
        if self._num_skips >= self.max_skips and self._by_age:
            oldest = self._oldest()
            found = state(oldest)
            if found in wanted:
                return oldest
            if found is State.ABSENT:
                return None  # those behind it may run again once its load has been started
        for programs in self._programs.values():
            best = self._first_of(programs, state, wanted) if programs else None
            if best is not None:
                return best
        return None

    def _first_of(
        self,
        programs: dict[str, OrderedDict[str, Request]],
        state: Callable[[Request], State],
        wanted: tuple[State, ...],
    ) -> Request | None:
        """The first of one tier: the first resident one among so many, or else the first."""
        fallback = None
        num_looked_at = 0
        for program in self._in_order(programs):
            for request in programs[program].values():
                found = state(request)
                num_looked_at += 1
                if found is State.RESIDENT:
                    return request
                if fallback is None and found in wanted:
                    fallback = request
                if num_looked_at >= _MAX_LOOKED_AT and (fallback or State.ABSENT not in wanted):
                    return fallback
        return fallback

    def _oldest(self) -> Request:
        return next(iter(self._by_age.values()))

    def _in_order(self, programs: dict[str, OrderedDict[str, Request]]) -> list[str]:
        if len(programs) < 2:
            return list(programs)
        return sorted(
            programs,
            key=lambda name: (
                self._attained_ms(name),
                next(iter(programs[name].values())).submission.arrival_s,
            ),
        )
