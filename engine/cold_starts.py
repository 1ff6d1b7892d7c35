"""Requests that run on adapters which are on their way: which may, and how far each comes.

Such a request is computed by a *pass*: a forward pass of one chunk of its prompt, apart from the
other rows, that goes on from step to step as layers come. It holds KV blocks and a lease like any
that runs. What a pass has computed in part counts for nothing: until it is done the chunk is one
that is yet to be computed, for usage, prefix cache, swapping and preemption alike.

Preemption takes no notice of passes: it goes by the order of admission, as everywhere, since that
is what lets some request always advance; and what a pass loses is one chunk at most.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from loraplex.adapters.residency import Residency, State
from loraplex.adapters.residency_counts import Route
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.begun_pass import BegunPass
from loraplex.engine.config import SchedulerConfig
from loraplex.engine.decode_rows import DecodeRows
from loraplex.engine.draft import Draft
from loraplex.engine.loads import Loads
from loraplex.engine.plan import ColdChunk, ColdOutput
from loraplex.engine.request import Request, Status
from loraplex.engine.route_decisions import Decided, RouteDecisions

MAX_WAIT_MS = 20.0
"""How long a step that computes nothing else may wait for layers; a message ends it before."""


@dataclass(slots=True, eq=False)
class _Cold:
    """A request that runs on an adapter that was on its way when it began."""

    request: Request
    route: Route
    """How it will have come to its adapter, if no pass of it begins."""
    asked: Decided | None = None
    """What stands for its next chunk, since it goes on: were it asked again before a layer lets its
    pass begin, what was to be tried would never be."""
    run: BegunPass | None = None
    is_counted: bool = False


class Ended(NamedTuple):
    """A pass that is done."""

    request: Request
    num_tokens: int
    token_id: int | None


@dataclass(slots=True)
class ColdStarts:
    """See above. Belongs to one scheduler."""

    config: SchedulerConfig
    residency: Residency
    loads: Loads
    decoding: DecodeRows
    decisions: RouteDecisions
    version: int = 0
    """Changes with `may_start` of any request."""
    _begun: dict[str, _Cold] = field(default_factory=dict)
    """In the order in which they began."""
    _looked_version: int = 0
    """When `look` was called last."""
    _num_uncounted_starts: int = 0
    """Of choices whose route was counted before, and of those that stopped before anything was
    computed on their adapter."""

    def look(self, now: float) -> bool:
        """See what has come since the last step; true if others may start now. Before each plan."""
        if self.config.route == "wait":
            return False
        for cold in list(self._begun.values()):
            if cold.run is not None:
                cold.run.until_layer, cold.run.advances = cold.run.num_layers, False
            elif self._is_resident(cold.request):
                self._count_once(cold, cold.route)
                self._leave(cold)
                if cold.request.row >= 0:
                    self.decoding.go_on(cold.request)
        self.version += self.decisions.look(now)
        has_changed = self.version != self._looked_version
        self._looked_version = self.version
        return has_changed

    def may_start(self, request: Request, cached_tokens: Callable[[Request], int]) -> bool:
        """True if a waiting request whose adapter is on its way starts now rather than later, by
        prediction; `cached_tokens` tells what of it need not be computed."""
        entry = None if request.adapter is None else self.residency.get(request.adapter)
        if entry is None or not entry.is_open or self.config.route == "wait":
            return False
        # Another choice computes what it can take over.
        open_choices = request.submission.open
        is_ahead = any(c.status is Status.RUNNING and c.row < 0 for c in open_choices)
        if is_ahead or not self._has_place(request):
            return False
        num_cached = cached_tokens(request)
        if num_cached < request.adapter_start:
            return True  # so much of it needs no adapter
        return self.decisions.may_begin(request, num_cached)

    def copy_ms(self, request: Request) -> float:
        """Until all of its adapter is there, by the link's rate; 0 if none of it is on its way."""
        key = request.adapter
        entry = None if key is None else self.residency.get(key)
        if key is None or entry is None or entry.is_there:
            return 0.0
        return self._link_ms(self.loads.bytes_ahead(key) + entry.left_bytes)

    def loads_ms(self) -> float:
        """Until all loads that are under way are there, by the link's rate."""
        return self._link_ms(self.loads.left_bytes)

    def started(self, request: Request, route: Route | None) -> None:
        """It runs; it has come to its adapter by `route`, if that is there."""
        if route is None:
            return
        if self._is_resident(request):
            self._count(request, route)
            return
        self._begun[request.key] = _Cold(request, route)
        self.decisions.began(request)
        self.version += 1

    def holds(self, request: Request) -> bool:
        """True if it runs and its adapter is not there yet."""
        return request.key in self._begun

    def forget(self, request: Request) -> None:
        """It runs no more: its pass, if it has one, is given up."""
        cold = self._begun.get(request.key)
        if cold is not None:
            self._num_uncounted_starts += not cold.is_counted
            self._leave(cold)

    def left(self, request: Request) -> int:
        """Tokens of a prompt that could be computed now, whoever computes it; of a pass, rows of a
        forward pass that are as much work."""
        cold = self._begun.get(request.key)
        if cold is None:
            return request.num_tokens_to_compute
        if request.num_computed_tokens < request.adapter_start:
            return request.adapter_start - request.num_computed_tokens
        run = cold.run or self._next_pass(cold)
        if run is None or self._is_halted(run):
            return 0
        ready = self._num_ready(run)
        return ceil(run.next(run.reach(ready)).num_rows * self._slowness(run, ready))

    def takes(self, request: Request, draft: Draft) -> bool:
        """True if a prompt is computed here: by a pass, but for what needs no adapter."""
        cold = self._begun.get(request.key)
        if cold is None:
            return False
        if request.num_computed_tokens < request.adapter_start:
            draft.prefill(request, request.adapter_start)
        elif (run := cold.run or self._next_pass(cold)) is not None:
            self._advance(run, draft)
            # A step that computes nothing begins no pass, and the next may find all there.
            cold.run = cold.run or (run if run.advances else None)
        return True

    def close(self, draft: Draft) -> None:
        """List all passes; let one that is alone in its step wait for layers there."""
        runs = list(self._runs())
        is_alone = len(runs) == 1 and not len(draft.selection) and not draft.chunks
        for run in runs:
            wait_ms = 0.0
            if is_alone and run.advances:
                run.until_layer, wait_ms = run.of_layers, MAX_WAIT_MS
            bounds = (run.until_layer, run.may_assist, wait_ms, run.advances, run.until_part)
            draft.cold.append(ColdChunk(run.chunk, *bounds))

    def take(
        self, draft: Draft, told: Mapping[str, ColdOutput], now: float
    ) -> tuple[list[Ended], float]:
        """Learn how far passes have come, by `now`, which is what the step is charged for. Return
        those that are done, and the ms for which the step stood still for layers."""
        draft.passes.clear()
        draft.ended_s = now
        ended: list[Ended] = []
        waited_ms = 0.0
        for cold in self._begun.values():
            run = cold.run
            if run is None:
                continue
            output = told[cold.request.key]
            if output.part > run.part:
                is_assisted = output.num_host_layers > run.num_host_layers
                part = run.next(output.part)
                draft.passes.append(part._replace(is_assisted=is_assisted))
            waited_ms += output.waited_ms
            run.take(output)
            if output.is_done:
                self._learn(run, output, now)
                self._count_once(cold, "assist" if run.num_host_layers else "layer-wise")
                cold.run = cold.asked = None
                self.version += 1  # another choice may take over what it has computed
                ended.append(Ended(cold.request, len(run.chunk.token_ids), output.token_id))
        return ended, waited_ms

    def check(self, requests: Iterable[Request]) -> None:
        """Assert the conservation laws; `requests` are all that run."""
        running = {request.key: request for request in requests}
        assert len(self._places()) <= self.config.max_cold_passes
        counts = self.residency.counts
        num_open = sum(not cold.is_counted for cold in self._begun.values())
        num_others = num_open + self._num_uncounted_starts
        assert sum(counts.routes.values()) + num_others == counts.num_uses, "a route is miscounted"
        for key, cold in self._begun.items():
            request = running[key]
            assert cold.request is request, "what has ended is under way"
            if cold.run is not None:
                chunk, size = cold.run.chunk, len(cold.run.chunk.block_table)
                assert request.row < 0, "a pass is under way for a request that decodes"
                assert chunk.start == request.num_computed_tokens, "part of a pass was counted"
                assert list(chunk.block_table) == request.block_table[:size]

    def _places(self) -> list[AdapterKey | None]:
        """Adapters of those whose prompts are computed here; who has its first token, and waits
        for the rest of its adapter, computes nothing."""
        begun = self._begun.values()
        return [cold.request.adapter for cold in begun if cold.request.row < 0]

    def _has_place(self, request: Request) -> bool:
        """One adapter has half of the places at most: others may come sooner."""
        taken, num = self._places(), self.config.max_cold_passes
        return len(taken) < num and taken.count(request.adapter) < max(1, num // 2)

    def _runs(self) -> Iterator[BegunPass]:
        return (cold.run for cold in self._begun.values() if cold.run is not None)

    def _link_ms(self, num_bytes: int) -> float:
        return num_bytes / self.decisions.routes.copy_bytes_per_s * 1e3

    def _is_resident(self, request: Request) -> bool:
        return request.adapter is not None and (
            self.residency.state(request.adapter) is State.RESIDENT
        )

    def _next_pass(self, cold: _Cold) -> BegunPass | None:
        """What it would begin with now; None if it does best to wait."""
        request = cold.request
        asked = cold.asked or self.decisions.beginning(request, request.num_computed_tokens)
        if asked.decision.route == "wait":
            return None
        cold.asked = asked
        return self._pass(request, asked)

    def _pass(self, request: Request, asked: Decided) -> BegunPass:
        start = request.num_computed_tokens
        end = min(request.num_tokens, start + self.config.max_step_tokens)
        assert request.adapter is not None
        entry = self.residency.get(request.adapter)
        assert entry is not None
        assert entry.of_layers > 0, "its pass would never end"
        return BegunPass(
            request, request.chunk(request.adapter, start, end), entry.of_layers, asked
        )

    def _advance(self, run: BegunPass, draft: Draft) -> None:
        """Let a pass compute what it may and the step has room for: less of what the host makes
        slower, since those that decode wait as long."""
        if draft.budget <= 0 or self._is_halted(run):
            return
        run.until_layer, run.advances = self._num_ready(run), True
        slowness = self._slowness(run, run.until_layer)
        num_rows = len(run.chunk.token_ids) * slowness
        run.until_part = min(1.0, run.part + draft.budget / num_rows)
        part = run.next(min(run.until_part, run.reach(run.until_layer)))
        draft.passes.append(part)
        draft.budget = max(0, draft.budget - ceil(part.num_rows * slowness))

    def _slowness(self, run: BegunPass, until_layer: int) -> float:
        is_assisted = self._num_there(run) < until_layer
        return run.asked.decision.host_slowness if is_assisted else 1.0

    def _is_halted(self, run: BegunPass) -> bool:
        """True if it comes no further now."""
        return self._num_ready(run) <= run.num_layers < run.of_layers

    def _num_ready(self, run: BegunPass) -> int:
        is_helped = run.may_assist and not run.is_stuck
        return run.of_layers if is_helped else self._num_there(run)

    def _num_there(self, run: BegunPass) -> int:
        """Layers of its adapter that are on the device."""
        if self._is_resident(run.request):
            return run.of_layers
        assert run.request.adapter is not None
        entry = self.residency.get(run.request.adapter)
        return 0 if entry is None else entry.num_layers

    def _learn(self, run: BegunPass, output: ColdOutput, now: float) -> None:
        asked = run.asked
        self.decisions.routes.note_first_token(asked.decision, (now - asked.at_s) * 1e3)
        if output.num_host_layers:
            num_bytes = run.request.submission.adapter_bytes
            num_bytes = num_bytes * output.num_host_layers // run.of_layers
            num_tokens, layers = len(run.chunk.token_ids), output.num_host_layers
            self.decisions.routes.note_host(num_tokens, num_bytes, output.host_ms, layers)

    def _leave(self, cold: _Cold) -> None:
        del self._begun[cold.request.key]
        self.version += 1

    def _count_once(self, cold: _Cold, route: Route) -> None:
        if not cold.is_counted:
            cold.is_counted = True
            self._count(cold.request, route)

    def _count(self, request: Request, route: Route) -> None:
        """Each choice once, however often it begins to run."""
        if request.route is not None:
            self._num_uncounted_starts += 1
        else:
            request.route = route
            self.residency.counts.count_route(route)
