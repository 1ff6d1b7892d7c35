"""By which route each request goes on whose adapter is on its way, as far as that was asked."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.decode_rows import DecodeRows
from loraplex.engine.loads import Loads
from loraplex.engine.request import Request
from loraplex.engine.routes import ColdStart, Decision, Routes

_NUM_STAGES = 8
"""Of a copy. What is best is asked anew in each: from one layer to the next it hardly changes."""
_MOST_ASKED = 16
"""Of those that wait, in one step; the others wait, and are asked for in the next."""


class Decided(NamedTuple):
    """What was decided for a request, when, and at which stage of the copy."""

    decision: Decision
    at_s: float
    stage: int


@dataclass(slots=True)
class RouteDecisions:
    """Asks `Routes`, remembers the answers for a while, and tells it how long those waited for
    which that was best. Belongs to one scheduler."""

    routes: Routes
    residency: Residency
    loads: Loads
    decoding: DecodeRows
    max_chunk_tokens: int
    """Of a prompt, in one pass."""
    _asked: dict[AdapterKey, dict[tuple[str, int], Decided]] = field(default_factory=dict)
    """By open adapter, and by request and where its chunk begins."""
    _num_asked: int = 0
    """Of those that wait, in this step."""
    _waiting: dict[str, tuple[AdapterKey, Decided]] = field(default_factory=dict)
    """Requests that were found to do best to wait, and when that was first."""
    _stages: dict[AdapterKey, int] = field(default_factory=dict)
    """Of open adapters."""
    _num_assistants: int = 0
    """Processes of the host, as answers were given."""
    _decodes: tuple[int, int] = 0, 0
    """`DecodeRows.load`, while adapters are open."""
    _now: float = 0.0

    def look(self, now: float) -> bool:
        """See what has come since the last step; true if answers may be others now."""
        self._now = now
        self._learn_from_waits()
        stages, has_left = self._open_stages(), self._num_asked > _MOST_ASKED
        self._num_asked = 0
        if stages:
            self._decodes = self.decoding.load()
        is_other = self.routes.num_assistants != self._num_assistants
        if stages == self._stages and not has_left and not is_other:
            return False
        self._stages, self._num_assistants = stages, self.routes.num_assistants
        known = {} if is_other else self._asked
        self._asked = {key: asked for key, asked in known.items() if key in stages}
        return True

    def may_begin(self, request: Request, start: int) -> bool:
        """True if a waiting request does best to begin now, with a chunk from `start` on."""
        if not self._is_known(request, start):
            self._num_asked += 1
            if self._num_asked > _MOST_ASKED:
                return False
        decided = self.decide(request, start)
        if decided.decision.route != "wait":
            return True
        assert request.adapter is not None
        self._waiting.setdefault(request.key, (request.adapter, decided))
        return False

    def began(self, request: Request) -> None:
        """It waits no longer."""
        self._waiting.pop(request.key, None)

    def decide(self, request: Request, start: int) -> Decided:
        """What is best for the next chunk of a prompt, which begins at `start`."""
        key = request.adapter
        assert key is not None
        of_adapter = self._asked.setdefault(key, {})
        if not self._is_known(request, start):
            decision = self.routes.choose(self._cold_start(request, start))
            of_adapter[request.key, start] = Decided(decision, self._now, self._stages.get(key, 0))
        return of_adapter[request.key, start]

    def beginning(self, request: Request, start: int) -> Decided:
        """The same for one that begins now. If it was decided before, it has waited for something
        else since: then its time teaches nothing of routes."""
        decided = self.decide(request, start)
        if decided.at_s == self._now:
            return decided
        return decided._replace(decision=replace(decided.decision, plain_ms=0.0))

    def _is_known(self, request: Request, start: int) -> bool:
        """True if `decide` has the answer."""
        key = request.adapter
        assert key is not None
        asked = self._asked.get(key, {}).get((request.key, start))
        return asked is not None and asked.stage == self._stages.get(key, 0)

    def _cold_start(self, request: Request, start: int) -> ColdStart:
        key = request.adapter
        assert key is not None
        entry = self.residency.get(key)
        assert entry is not None
        num_decodes, decode_context = self._decodes
        return ColdStart(
            num_tokens=min(request.num_tokens - start, self.max_chunk_tokens),
            num_context=start,
            rank=request.submission.rank,
            bytes_ahead=self.loads.bytes_ahead(key),
            bytes_left=entry.left_bytes,
            num_layers=entry.num_layers,
            of_layers=entry.of_layers,
            num_decodes=num_decodes,
            decode_context=decode_context,
        )

    def _open_stages(self) -> dict[AdapterKey, int]:
        entries = ((key, self.residency.get(key)) for key in self.loads.keys)
        return {
            key: entry.num_layers * _NUM_STAGES // max(1, entry.of_layers)
            for key, entry in entries
            if entry is not None and entry.is_open and not entry.is_there
        }

    def _learn_from_waits(self) -> None:
        for key, (adapter, decided) in list(self._waiting.items()):
            state = self.residency.state(adapter)
            if state is State.LOADING:
                continue
            del self._waiting[key]
            if state is State.RESIDENT:
                self.routes.note_waited(decided.decision, (self._now - decided.at_s) * 1e3)
