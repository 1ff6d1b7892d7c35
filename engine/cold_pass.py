"""A forward pass of one chunk on an adapter that is on its way: it stops before layers that have
not come, and goes on from there in a later step.

It runs the model's own forward pass in a thread of its own, so any model can be stopped before any
of its linear layers; but only one of that thread and the engine's ever runs.
"""

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple, TypeVar

from torch import Tensor

from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.placement import EarlyAdapter
from loraplex.engine.assist_port import Asked, Assist, AssistLost
from loraplex.engine.linear_group import Detour, LinearGroup
from loraplex.engine.lora_batch import LoraBatch, Turn
from loraplex.engine.plan import ColdOutput
from loraplex.engine.turns import Turns
from loraplex.kernels.segments import Slices

Result = TypeVar("Result")

_THREAD = "cold-pass"
_LOOK_MS = 1.0
"""How often a pass that waits for a layer looks whether it still may."""


class _Need(NamedTuple):
    """What linear layers of one input need of an adapter that touches some of them."""

    layer: int
    """Of the adapter's: it and those before it."""
    paths: tuple[str, ...]
    """Of all of them."""


class ColdPass:
    """One pass. Belongs to the engine's thread.

    Until it is done, or has raised, or was given up, there may be a thread that rests.
    """

    def __init__(
        self,
        lora: LoraBatch,
        early: EarlyAdapter,
        progress: LoadProgress,
        forward: Callable[[Detour], Tensor],
        assist: Assist | None = None,
    ) -> None:
        """`forward` computes the chunk's logits with a detour of `lora`, of a step whose rows are
        all of the adapter; it is called in the pass's own thread."""
        self._lora = lora
        self._early = early
        self._copied = progress
        self._assist = assist
        self._turns = Turns(lambda: forward(self), _THREAD)
        self._left = Turn()
        """What it left in the layers, while it rests."""
        self._needs: dict[Slices, _Need | None] = {}
        self._standing_before = -1
        """The adapter's layer that it needs next, while it rests; -1 if none."""
        self._until_layer, self._may_assist, self._wait_ms = 0, False, 0.0
        self._until_part = 1.0
        # One more for what comes after the last group: its part is 1 when it is done, not before.
        self._size = 1 + sum(lora.size(group.slices) for group in lora.groups)
        self._computed_size = 0
        self._ends_wait: Callable[[], bool] = bool
        self._is_lost = False
        """True if nobody on the host will compute what it stands before."""
        self._num_layers = 0
        self._host_layers: set[int] = set()
        self._host_ms = 0.0
        self.waited_ms = 0.0
        """Time for which it has waited for layers; whoever reads it may set it to 0."""
        self.logits: Tensor | None = None
        """``[sampled rows, vocab]``, once it is done."""

    def advance(
        self,
        until_layer: int,
        *,
        may_assist: bool = False,
        wait_ms: float = 0.0,
        ends_wait: Callable[[], bool] = bool,
        until_part: float = 1.0,
    ) -> None:
        """Go on until the pass is done, or ``until_part`` of it, or it stands before a layer from
        ``until_layer`` on, or before one that has not come and the host may not compute, for which
        it waits up to ``wait_ms``, altogether, unless ``ends_wait`` turns true. A pass that is done
        is not advanced again.

        Raises:
            Exception: what the forward pass raised; the pass has ended then.
        """
        self._until_layer, self._may_assist, self._wait_ms = until_layer, may_assist, wait_ms
        self._ends_wait, self._until_part = ends_wait, until_part
        if not self._turns.is_begun or self._may_compute(self._standing_before):
            ended = self._in_turn(self._turns.go_on)
            if ended is not None:
                (self.logits,) = ended
                self._num_layers = self._copied.of_layers

    def progress(self) -> ColdOutput:
        """How far it has come."""
        return ColdOutput(
            self._num_layers,
            len(self._host_layers),
            is_done=self.logits is not None,
            host_ms=self._host_ms,
            waited_ms=self.waited_ms,
            part=1.0 if self.logits is not None else self._part,
        )

    def give_up(self) -> None:
        """End the pass where it stands; nothing is left of it."""
        self._in_turn(self._turns.give_up)
        self._left = Turn()

    def output(self, group: LinearGroup, x: Tensor) -> Tensor:
        """See `Detour.output`. Called in the pass's own thread, which may rest in it."""
        self._await(-1)
        self._computed_size += self._lora.size(group.slices)
        need = self._need(group.slices)
        if need is None or not x.numel():
            return group.updates.linear(group.slices, group.dense.apply(x), x)
        asked, started = self._asked(need, x), perf_counter()
        y = group.dense.apply(x)
        if asked is not None:
            if self._added(asked, y):
                self._host_ms += (perf_counter() - started) * 1e3
                self._host_layers.add(need.layer)
                return y
            self._await(need.layer)
            self._is_lost = False
        return group.updates.linear(group.slices, y, x)

    def _need(self, slices: Slices) -> _Need | None:
        if slices not in self._needs:
            paths, layer_of = self._lora.paths(slices), self._early.layer_of
            layers = [layer_of[path] for path in paths if path in layer_of]
            self._needs[slices] = _Need(max(layers), paths) if layers else None
        return self._needs[slices]

    def _asked(self, need: _Need, x: Tensor) -> Asked | None:
        """Wait until these layers may be computed; ask the host, if the device does not have them
        then."""
        self._num_layers = max(self._num_layers, need.layer)
        self._await(need.layer)
        while self._copied.num_layers <= need.layer:
            assert self._assist is not None, "nothing but the host lets it come here"
            try:
                return self._assist.ask(self._early.host, need.paths, x.reshape(-1, x.shape[-1]))
            except AssistLost:
                self._is_lost = True
            self._await(need.layer)
        self._is_lost = False
        return None

    def _added(self, asked: Asked, y: Tensor) -> bool:
        """Add what the host has computed; False if that will not come."""
        try:
            asked.add_to(y.view(-1, y.shape[-1]))
        except AssistLost:
            self._is_lost = True
        return not self._is_lost

    def _await(self, layer: int) -> None:
        while not self._may_compute(layer):
            self._standing_before = layer
            self._turns.rest()

    @property
    def _part(self) -> float:
        return min(self._computed_size, self._size - 1) / self._size

    def _may_compute(self, layer: int) -> bool:
        if layer < 0:
            return self._until_part >= 1.0 or self._part < self._until_part
        if layer >= self._until_layer:
            return False
        if self._copied.num_layers > layer:
            return True
        if self._may_assist and not self._is_lost and self._assist and self._assist.num_ready:
            return True
        return self._wait_ms > 0 and self._has_come(layer)

    def _has_come(self, layer: int) -> bool:
        started = perf_counter()
        has_come, left_ms = False, self._wait_ms
        while not has_come and left_ms > 0 and not self._ends_wait():
            has_come = self._copied.wait_for(layer + 1, min(_LOOK_MS, left_ms) / 1e3)
            left_ms = self._wait_ms - (perf_counter() - started) * 1e3
        self.waited_ms += (perf_counter() - started) * 1e3
        self._wait_ms = left_ms if has_come else 0.0
        return has_come

    def _in_turn(self, turn: Callable[[], Result]) -> Result:
        """Have the layers go on where the pass left them."""
        others = self._lora.exchange(self._left)
        try:
            return turn()
        finally:
            self._left = self._lora.exchange(others)
