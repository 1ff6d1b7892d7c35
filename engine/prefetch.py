"""Loads that nobody has asked for yet, in time and memory that nobody needs more."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType

from loraplex.adapters.residency import Residency, State
from loraplex.adapters.residency_counts import PrefetchCause
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.config import PrefetchMode
from loraplex.engine.draft import Draft
from loraplex.engine.hints import Hints
from loraplex.engine.loads import Loads
from loraplex.engine.request import Request

_NUM_AHEAD = 32
"""Waiting requests that are looked at."""
_NUM_GONE = 64
"""Adapters evicted last, among which those are looked for that may be wanted again."""
_MARGINS: Mapping[PrefetchCause, float] = MappingProxyType(
    {"queue": 1.5, "hint": 1.5, "guess": 4.0}
)
"""How much more than what it evicts a prefetch must be worth, since estimates err. For what nobody
has asked for more: with 1.5 a third of the bytes of guesses were for nothing."""
_NUM_HINTS_WEIGHED = 4
"""Hints that are weighed at one look, each against all that is in memory."""
_PAUSE_STEPS = 8
"""Between two looks of which the first found nothing, since to weigh all that is in memory takes a
while where there is much; and between two guesses."""


class Prefetch:
    """First what is pinned, then adapters of requests that will be admitted soon, then what tenants
    have said that they will use, then those that were evicted and are worth more by now than what
    is in memory instead.

    A prefetch takes from nobody: it starts while no load waits for the budget, evicts only what is
    worth less, and gives its memory back to the first load that needs it (`Residency`). It costs no
    tenant anything until one of its requests needs it, which then pays as if it had started it.
    """

    def __init__(self, residency: Residency, loads: Loads, mode: PrefetchMode) -> None:
        self._residency = residency
        self._loads = loads
        self._mode = mode
        self.hints = Hints(residency)
        """Followed in every mode: a tenant asks for them, and no gateway knows the mode."""
        self._num_steps = self._queue_from = self._hint_from = self._guess_from = 0
        self._pins_version = 0
        self._seen_pins: tuple[int, int] | None = None
        """Versions of pins and residency at which nothing more was to be done."""
        self._tried_pins: set[AdapterKey] = set()
        self._gone: OrderedDict[AdapterKey, None] = OrderedDict()

    def start(self, upcoming: Iterable[Request], draft: Draft, now: float) -> None:
        """Start what is worth it. `upcoming` are waiting requests, those first that are likely to
        be admitted first; once after each admission. `now` is in seconds."""
        self._load_pinned(draft)
        self._num_steps += 1
        if self._mode != "none":
            self._note(draft.evictions)
            self._load_upcoming(upcoming, draft)
        if self.hints:
            self._load_hinted(draft, now)
        if self._mode == "all":
            self._load_likeliest(draft)

    def warm(self, key: AdapterKey, num_bytes: int, until_s: float) -> bool:
        """A tenant will use an adapter of so many bytes; see `Hints.note`."""
        self._hint_from = 0
        return self.hints.note(key, num_bytes, until_s)

    def _load_upcoming(self, upcoming: Iterable[Request], draft: Draft) -> None:
        if self._num_steps < self._queue_from or not self._loads.spare_bytes:
            return
        for key in self._wanted(upcoming):
            if not self._try(key, "queue", draft):
                self._queue_from = self._num_steps + _PAUSE_STEPS
                return

    def _load_hinted(self, draft: Draft, now: float) -> None:
        """Start one, if nothing else is on its way: what requests want comes first."""
        self.hints.end_past(now)
        if self._num_steps < self._hint_from or self._loads.bytes_in_flight:
            return
        for key in islice(self.hints.absent(), _NUM_HINTS_WEIGHED):
            if self._try(key, "hint", draft):
                return
        self._hint_from = self._num_steps + _PAUSE_STEPS

    def _load_likeliest(self, draft: Draft) -> None:
        if self._num_steps < self._guess_from or self._loads.bytes_in_flight:
            return
        self._guess_from = self._num_steps + _PAUSE_STEPS
        likeliest = self._likeliest()
        if likeliest is not None:
            self._try(likeliest, "guess", draft)

    def _load_pinned(self, draft: Draft) -> None:
        """Load what is pinned, whatever the mode. What could not be read is tried again when the
        pins change."""
        residency, version = self._residency, self._residency.granted.reservations.version
        seen = version, residency.version
        if seen == self._seen_pins:
            return
        self._seen_pins = seen
        if version != self._pins_version:
            self._pins_version = version
            self._tried_pins.clear()
        for key, num_bytes in residency.absent_pins():
            if key in self._tried_pins:
                continue
            has_room = num_bytes <= self._loads.spare_bytes or not self._loads.bytes_in_flight
            if not has_room or not residency.can_load(num_bytes, key.tenant, is_prefetch=True):
                self._seen_pins = None  # look again
                continue
            self._tried_pins.add(key)
            self._loads.prefetch(key, num_bytes, draft, "pin")

    def _try(self, key: AdapterKey, cause: PrefetchCause, draft: Draft) -> bool:
        """Start a prefetch if there is budget for it and it is worth it."""
        num_bytes = self._residency.demand.num_bytes(key)
        # As with loads, one hint may always be followed, whatever its size.
        has_budget = num_bytes <= self._loads.spare_bytes or cause == "hint"
        if not has_budget or not self._is_worth_it(key, cause, draft):
            return False
        num_evicted = len(draft.evictions)
        self._loads.prefetch(key, num_bytes, draft, cause)
        self._note(draft.evictions[num_evicted:])
        return True

    def _wanted(self, upcoming: Iterable[Request]) -> Iterator[AdapterKey]:
        """Absent adapters, each once."""
        seen: set[AdapterKey] = set()
        for request in islice(upcoming, _NUM_AHEAD):
            key = request.adapter
            if key is not None and key not in seen:
                seen.add(key)
                if self._residency.state(key) is State.ABSENT:
                    yield key

    def _likeliest(self) -> AdapterKey | None:
        """Of the absent, what is worth most to each byte."""
        absent = (key for key in self._gone if self._residency.state(key) is State.ABSENT)
        return max(absent, key=self._residency.demand.density, default=None)

    def _is_worth_it(self, key: AdapterKey, cause: PrefetchCause, draft: Draft) -> bool:
        residency, demand, margin = self._residency, self._residency.demand, _MARGINS[cause]
        num_bytes = demand.num_bytes(key)
        if not residency.can_load(num_bytes, key.tenant, is_prefetch=True):
            return False
        victims = residency.victims(num_bytes, key.tenant, is_prefetch=True)
        if not set(draft.prefetches).isdisjoint(victims):
            return False
        if cause != "queue" and any(map(demand.is_hinted, victims)):
            return False
        given_up = sum(map(demand.worth, victims))
        # By each byte too, or it would be the first to be evicted again.
        densest = max(map(demand.density, victims), default=0.0)
        is_denser = demand.density(key) > margin * densest
        return is_denser and demand.worth(key) > margin * given_up

    def _note(self, evicted: Iterable[AdapterKey]) -> None:
        for key in evicted:
            self._gone[key] = None
            self._gone.move_to_end(key)
        while len(self._gone) > _NUM_GONE:
            self._gone.popitem(last=False)
