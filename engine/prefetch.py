"""Loads that nobody has asked for yet, in time and memory that nobody needs more."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice

from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.config import PrefetchMode
from loraplex.engine.draft import Draft
from loraplex.engine.loads import Loads
from loraplex.engine.request import Request

_NUM_AHEAD = 32
"""Waiting requests that are looked at."""
_NUM_GONE = 64
"""Adapters evicted last, among which those are looked for that may be wanted again."""
_MARGIN = 1.5
"""How much more than what it evicts a prefetch must be worth, since estimates err."""


class Prefetch:
    """First adapters of requests that will be admitted soon, then those that were evicted and are
    worth more by now than what is in memory instead.

    A prefetch takes from nobody: it starts while no load waits for the budget, evicts only what is
    worth less, and gives its memory back to the first load that needs it (`Residency`). It costs no
    tenant anything until one of its requests needs it, which then pays as if it had started it.
    """

    def __init__(self, residency: Residency, loads: Loads, mode: PrefetchMode) -> None:
        self._residency = residency
        self._loads = loads
        self._mode = mode
        self._gone: OrderedDict[AdapterKey, None] = OrderedDict()

    def start(self, upcoming: Iterable[Request], draft: Draft) -> None:
        """Start what is worth it. `upcoming` are waiting requests, those first that are likely to
        be admitted first; once after each admission."""
        if self._mode == "none":
            return
        self._note(draft.evictions)
        spare_bytes = self._loads.spare_bytes
        if spare_bytes <= 0:
            return
        for key in self._wanted(upcoming):
            if spare_bytes <= 0:
                return
            num_bytes = self._residency.demand.num_bytes(key)
            if num_bytes <= spare_bytes and self._is_worth_it(key, num_bytes, draft):
                num_evicted = len(draft.evictions)
                self._loads.prefetch(key, num_bytes, draft)
                self._note(draft.evictions[num_evicted:])
                spare_bytes -= num_bytes

    def _wanted(self, upcoming: Iterable[Request]) -> Iterator[AdapterKey]:
        """Absent adapters, each once."""
        seen: set[AdapterKey] = set()
        for request in islice(upcoming, _NUM_AHEAD):
            key = request.adapter
            if key is not None and key not in seen:
                seen.add(key)
                if self._residency.state(key) is State.ABSENT:
                    yield key
        if self._mode == "all":
            absent = (key for key in self._gone if self._residency.state(key) is State.ABSENT)
            yield from sorted(set(absent) - seen, key=self._residency.demand.density, reverse=True)

    def _is_worth_it(self, key: AdapterKey, num_bytes: int, draft: Draft) -> bool:
        if not self._residency.can_load(num_bytes):
            return False
        worth = self._residency.demand.worth
        victims = self._residency.victims(num_bytes)
        if not set(draft.prefetches).isdisjoint(victims):
            return False
        return worth(key) > _MARGIN * sum(map(worth, victims))

    def _note(self, evicted: Iterable[AdapterKey]) -> None:
        for key in evicted:
            self._gone[key] = None
            self._gone.move_to_end(key)
        while len(self._gone) > _NUM_GONE:
            self._gone.popitem(last=False)
