"""How a request goes on whose adapter is not on the device, by what is predicted to be fastest.

    wait         until all of the adapter is there, then compute the prompt as any other
    layer-wise   compute the prompt on the layers that have come, while others are copied
    assist       the same, and have the host compute the adapter's part of layers that have not

Prompts are computed in groups of layers, for other reasons, by "Layered Prefill" (MLSys 2026,
github.com/scale-snu/layered-prefill); assisted prefill is from https://arxiv.org/abs/2401.11240.
Pure Python; time is an argument.

**Prediction.** Bytes come at the link's learned rate, those ahead first, in layers one after the
other. A pass computes layer g once g has come and the layer before is computed:
`t = max(t, arrival of g) + a layer's time`; but while others decode it does not stand and wait, it
gives its turn back, and each turn begins with a step of theirs. With the host's help no layer is
waited for; one that has not come takes as long as the slower of the base layer and the host's part.
Each route's prediction is corrected by how those before it turned out (`Corrections`).

**Choice.** What is not `wait` must be predicted to be faster by more than the predictions' errors,
and 2 %: so a change of mind is rare, and never one for nothing. A route that was not seen for long
is judged by the model and what is known of the others; where that puts it within a few percent of
the best it is tried once in a while, since only that tells, and costs those percents at most. It is
tried more often where it looks better than waiting and only the margin speaks against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Literal, NamedTuple

from loraplex.engine.config import RouteMode
from loraplex.engine.cost_features import StepFeatures
from loraplex.engine.costs_port import StepCosts
from loraplex.engine.route_learning import CopyRate, Corrections, HostRate

ColdRoute = Literal["wait", "layer-wise", "assist"]

_STOP_MS = 0.1
"""To stop a pass and go on with it, beside the step of those that decode."""
_USUAL_LAYERS = 32
"""Of an adapter, as long as none has told."""
_MOST_TURNS = 12
"""Of a pass that are followed one by one."""
_LEAST_MARGIN = 0.02
_NUM_ERRORS = 1.0
"""Standard errors by which a route must be better than waiting."""
_TRIED_WITHIN = 0.05
_TRIED_EVERY = 32
"""Outcomes of other routes."""
_HOPED_FOR_EVERY = 8
"""The same of a route that would be the best but for its margin."""
_LEARNED_STEPS = 64
"""Before so many steps what a route took tells of its steps rather than of the route."""


class ColdStart(NamedTuple):
    """A request whose adapter is on its way, as far as its route depends on it."""

    num_tokens: int
    """Of its prompt, to be computed by a pass of its own."""
    num_context: int
    """Tokens before them, in the KV cache already."""
    rank: float
    """Of its adapter, in the cost model's sense."""
    bytes_ahead: int
    """Of other adapters that are copied before its own."""
    bytes_left: int
    """Of its adapter, that have not come."""
    num_layers: int
    """Of its adapter, that have come."""
    of_layers: int
    """0 if that is not known yet."""
    num_decodes: int
    """Rows of others that decode meanwhile: each step computes theirs too."""
    decode_context: int = 0
    """Tokens in the KV cache that those read in each step, together."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A route, and when each was predicted to end with the request's first token, in ms from now;
    routes that are ruled out are missing."""

    route: ColdRoute
    predicted_ms: Mapping[ColdRoute, float]
    cold: ColdStart | None = None
    """What it was made for."""
    plain_ms: float = 0.0
    """The prediction of its route without corrections; 0 where it was made too early to be judged
    by what happens."""
    host_slowness: float = 1.0
    """Time of a layer of which the host computes the adapter's part ÷ that of one on the device,
    where the host assists; at least 1."""


@dataclass(frozen=True, slots=True)
class Regret:
    """What choices lost, as far as it can be told afterwards: the other routes never ran, they are
    predicted again by the rates that are known by then."""

    num_requests: int = 0
    taken_ms: float = 0.0
    """By the routes that were chosen, altogether."""
    lost_ms: float = 0.0
    """Of it, what the best of the others would have saved."""

    @property
    def ratio(self) -> float:
        """Lost ÷ taken; 0 without any request."""
        return self.lost_ms / self.taken_ms if self.taken_ms else 0.0


@dataclass(slots=True)
class _Unseen:
    """Outcomes since each route was seen or tried last."""

    outcomes: dict[ColdRoute, int] = field(default_factory=dict)

    def note(self, seen: ColdRoute) -> None:
        for route in ("layer-wise", "assist"):
            self.outcomes[route] = 0 if route == seen else self.outcomes.get(route, 0) + 1

    def is_due(self, route: ColdRoute, *, is_hoped_for: bool) -> bool:
        every = _HOPED_FOR_EVERY if is_hoped_for else _TRIED_EVERY
        return self.outcomes.get(route, 0) >= every


class Routes:
    """Predicts and chooses; learns from what happened. Belongs to the engine's thread."""

    def __init__(
        self,
        costs: StepCosts,
        mode: RouteMode,
        num_assistants: int,
        copy_bytes_per_s: float = 1e9,
    ) -> None:
        """`copy_bytes_per_s` is what the link is taken to do before anything was copied."""
        self._costs = costs
        self._mode = mode
        self.num_assistants = num_assistants
        """Of the host, that could be asked now."""
        self._link = CopyRate(copy_bytes_per_s)
        self._host = HostRate(num_assistants)
        self._corrections = Corrections()
        self._unseen = _Unseen()
        self._usual_layers = _USUAL_LAYERS
        self.regret = Regret()
        """Of all requests so far."""

    @property
    def copy_bytes_per_s(self) -> float:
        """Of the link, of late."""
        return self._link.bytes_per_s

    @copy_bytes_per_s.setter
    def copy_bytes_per_s(self, bytes_per_s: float) -> None:
        """Where it is known before the first copy."""
        self._link.bytes_per_s = bytes_per_s

    def error(self, route: ColdRoute) -> float:
        """Standard error of its predictions, relative, by what those before turned out to be; 0.2
        where nothing was learned."""
        return self._corrections.error(route)

    def choose(self, cold: ColdStart) -> Decision:
        """The route to go on by."""
        if cold.of_layers:
            self._usual_layers = cold.of_layers
        plain = self._predict(cold)
        predicted = {route: ms * self._corrections.factor(route) for route, ms in plain.items()}
        route = self._fastest(predicted)
        is_learned = self._costs.num_steps >= _LEARNED_STEPS
        slowness = self._host_slowness(cold) if route == "assist" else 1.0
        return Decision(route, predicted, cold, plain[route] if is_learned else 0.0, slowness)

    def note_copy(self, num_bytes: int, seconds: float) -> None:
        """So many bytes went to the device in this time."""
        self._link.note(num_bytes, seconds)

    def note_host(self, num_tokens: int, num_bytes: int, ms: float, num_layers: int = 1) -> None:
        """The host computed the part of so many of an adapter's bytes for so many tokens, and it
        took so long from the question to the answer, all layers together."""
        self._host.note(num_tokens, num_bytes, ms, num_layers)

    def note_first_token(self, decision: Decision, ms: float) -> None:
        """A request that went on as decided had computed its chunk so long after the decision."""
        if decision.cold is None or ms <= 0 or decision.plain_ms <= 0:
            return
        self._unseen.note(decision.route)
        self._corrections.note(decision.route, ms / decision.plain_ms)
        again = self._predict(decision.cold)
        others = (
            again[route] * self._corrections.factor(route)
            for route in again
            if route != decision.route
        )
        lost_ms = max(0.0, ms - min(others, default=ms))
        regret = self.regret
        self.regret = Regret(
            regret.num_requests + 1, regret.taken_ms + ms, regret.lost_ms + lost_ms
        )

    def note_waited(self, decision: Decision, ms: float) -> None:
        """A request for which waiting was best had all of its adapter there so long after the
        decision. When it then starts is no matter of routes."""
        if decision.cold is not None:
            self.note_first_token(decision, ms + self._times(decision.cold).together_ms)

    def _fastest(self, predicted: dict[ColdRoute, float]) -> ColdRoute:
        if self._mode != "choose":
            return self._mode if self._mode in predicted else "wait"
        wait_ms = predicted["wait"]
        best: ColdRoute = "wait"
        for route, ms in predicted.items():
            if ms < predicted[best] and ms * (1.0 + self._margin(route)) < wait_ms:
                best = route
        for route, ms in predicted.items():
            is_near = route != best and ms < predicted[best] * (1.0 + _TRIED_WITHIN)
            if is_near and self._unseen.is_due(route, is_hoped_for=ms < predicted[best]):
                self._unseen.outcomes[route] = 0
                return route
        return best

    def _margin(self, route: ColdRoute) -> float:
        """By how much, relative, it must be better than waiting."""
        # Waiting is predicted by rates that are learned elsewhere: the link's and a step's.
        return max(_LEAST_MARGIN, _NUM_ERRORS * self._corrections.error(route))

    def _predict(self, cold: ColdStart) -> dict[ColdRoute, float]:
        """Each route's time in ms, without corrections."""
        of_layers = cold.of_layers or self._usual_layers
        times = self._times(cold)
        left = max(0, of_layers - cold.num_layers) if cold.bytes_left > 0 else 0
        if not left:
            return {"wait": times.together_ms}
        per_byte_ms = 1e3 / self.copy_bytes_per_s
        work = _Pass(
            before_ms=cold.bytes_ahead * per_byte_ms,
            arrival_ms=cold.bytes_left / left * per_byte_ms,
            layer_ms=times.alone_ms / of_layers,
            decodes_ms=times.decodes_ms,
            num_there=of_layers - left,
            num_left=left,
        )
        predicted: dict[ColdRoute, float] = {
            "wait": work.whole_steps(work.last_ms) + times.together_ms,
            "layer-wise": work.layer_wise_ms(),
        }
        if self.num_assistants:
            self._host.num_processes = self.num_assistants
            host_ms = self._host.layer_ms(cold.num_tokens, cold.bytes_left / left)
            predicted["assist"] = work.assisted_ms(host_ms)
        return predicted

    def _host_slowness(self, cold: ColdStart) -> float:
        of_layers = cold.of_layers or self._usual_layers
        layer_bytes = cold.bytes_left / max(1, of_layers - cold.num_layers)
        layer_ms = self._times(cold).alone_ms / of_layers
        return max(1.0, self._host.layer_ms(cold.num_tokens, layer_bytes) / layer_ms)

    def _times(self, cold: ColdStart) -> "_Times":
        num_tokens, num_decodes, context = cold.num_tokens, cold.num_decodes, cold.decode_context
        squared, before = float(num_tokens * num_tokens), float(num_tokens * cold.num_context)
        alone = StepFeatures(num_tokens, 0, num_tokens, squared, before, 0, cold.rank, 1)
        beside, decodes_ms = alone, 0.0
        if num_decodes:
            rows = num_tokens + num_decodes
            beside = StepFeatures(
                rows, num_decodes, num_tokens, squared, before, context, cold.rank, 1
            )
            decodes = StepFeatures(num_decodes, num_decodes, 0, 0.0, 0.0, context)
            decodes_ms = self._costs.predict_ms(decodes)
        predict_ms = self._costs.predict_ms
        return _Times(predict_ms(alone), decodes_ms, predict_ms(beside))


class _Times(NamedTuple):
    """Of steps, in ms."""

    alone_ms: float
    """With the chunk and nothing else."""
    decodes_ms: float
    """With those that decode; 0 without any."""
    together_ms: float
    """With both."""


class _Pass(NamedTuple):
    """A chunk of a prompt, computed apart from the steps of those that decode."""

    before_ms: float
    """Until the first byte of its adapter is copied."""
    arrival_ms: float
    """Between two layers' arrivals."""
    layer_ms: float
    """To compute one."""
    decodes_ms: float
    """A step of those that decode; 0 without any."""
    num_there: int
    """Layers that have come."""
    num_left: int

    @property
    def last_ms(self) -> float:
        """When the last layer comes."""
        return self.before_ms + self.num_left * self.arrival_ms

    def whole_steps(self, ms: float) -> float:
        """The end of the first step of decodes that ends no earlier."""
        if not self.decodes_ms:
            return ms
        return ceil(ms / self.decodes_ms) * self.decodes_ms

    def layer_wise_ms(self) -> float:
        """Its end, if layers that have not come are waited for, or, while others decode, the pass
        stops before them."""
        turn_ms = self.decodes_ms + _STOP_MS
        ms = self.decodes_ms + self.num_there * self.layer_ms
        if not self.decodes_ms:
            # A sum of equal steps behind the latest of equally distant arrivals: the first or the
            # last layer is the one that decides.
            first_ms = self.before_ms + self.arrival_ms
            compute_ms = self.num_left * self.layer_ms
            return max(ms + compute_ms, first_ms + compute_ms, self.last_ms + self.layer_ms)
        left = self.num_left
        while left:
            comes_ms = self._arrival_of(left)
            if comes_ms > ms:
                ms += ceil((comes_ms - ms) / turn_ms) * turn_ms
            num_layers = self._num_in_time(ms - comes_ms, self.layer_ms, left)
            ms += num_layers * self.layer_ms
            left -= num_layers
            if left > _MOST_TURNS:
                # It goes at the copy's pace now; where in a turn it is at the end is a guess.
                left = _MOST_TURNS
                ms = self._arrival_of(left + 1) + self.layer_ms
        return ms

    def assisted_ms(self, host_ms: float) -> float:
        """Its end, if the host computes the adapter's part of layers that have not come."""
        ms = self.decodes_ms + self.num_there * self.layer_ms
        slower_ms = max(self.layer_ms, host_ms)
        left = self.num_left
        while left:
            comes_ms = self._arrival_of(left)
            if comes_ms <= ms:
                num_layers = self._num_in_time(ms - comes_ms, self.layer_ms, left)
                ms += num_layers * self.layer_ms
            else:
                num_layers = self._num_too_late(comes_ms - ms, slower_ms, left)
                ms += num_layers * slower_ms
            left -= num_layers
        # One more may just miss its turn, which is dear where the host is slow.
        return ms + slower_ms - self.layer_ms

    def _arrival_of(self, left: int) -> float:
        """When the next layer comes, if so many are to be computed."""
        return self.before_ms + (self.num_left - left + 1) * self.arrival_ms

    def _num_in_time(self, ahead_ms: float, each_ms: float, left: int) -> int:
        """How many layers in a row are there when they are needed, if the first came `ahead_ms`
        before and each takes so long; at least that one."""
        if self.arrival_ms <= each_ms:
            return left
        return min(left, int(ahead_ms / (self.arrival_ms - each_ms)) + 1)

    def _num_too_late(self, behind_ms: float, each_ms: float, left: int) -> int:
        """How many are not, if the first comes `behind_ms` later; at least that one."""
        if each_ms <= self.arrival_ms:
            return left
        return min(left, max(1, ceil(behind_ms / (each_ms - self.arrival_ms))))
