"""Decides who computes the dense layers of a model."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.kernels.linear import PackedWeight, Packer, TorchPacker
from loraplex.kernels.linear_onednn import OneDnnPacker

_log = logging.getLogger(__name__)

Choose = Callable[[Sequence[Packer], Sequence[Tensor]], Packer]
"""Picks who packs weights ``[out_i, in_i]`` of one dtype, of several that can; the first is the
preferred one."""

_ROWS = (1, 4, 16, 64)
"""Decodes of few and of many requests; who is best at the last is best at prompts too."""
_SAMPLE_BYTES = 16 << 20
"""Of weights that are measured: with those of all contenders more than most caches hold, so that
they come from memory, as they do in a step."""
_MIN_ROUNDS = 2
"""The first makes what later ones use."""
_MAX_ROUNDS = 8
_BUDGET_S = 0.2
"""For all rounds but the first ones."""
_HOPELESS = 3.0
"""Times the least time: who takes so long is not asked for more rows."""
_CLOCK_MS = 1e-3
"""Shorter times are not told apart."""
_GAIN = 0.95
"""Others must take less than this of the preferred one's time."""


def candidates(
    dtype: torch.dtype, device: torch.device, kernels: CpuKernels | None
) -> tuple[Packer, ...]:
    """Return those that can pack weights of this dtype on this device, the preferred one first.

    That is our own, since its rows do not depend on their batch.
    """
    if device.type != "cpu":
        return (TorchPacker(),)
    found: list[Packer] = []
    if kernels and kernels.linear.supports(dtype):
        found.append(kernels.linear)
    onednn = OneDnnPacker.of(dtype)
    return (*found, *([onednn] if onednn else []), TorchPacker())


def preferred(packers: Sequence[Packer], weights: Sequence[Tensor]) -> Packer:  # noqa: ARG001  a `Choose`
    """Pick the preferred one."""
    return packers[0]


def fastest(packers: Sequence[Packer], weights: Sequence[Tensor]) -> Packer:
    """Pick the one that takes the least time for a part of ``weights``, over some numbers of rows.

    That takes about a third of a second; the log tells what was found.  Without weights there is
    nothing to measure, and the preferred one is picked.
    """
    sample = list(_sample(weights))
    if len(packers) == 1 or not sample:
        return packers[0]
    contenders = _measured(packers, sample)
    winner = best(contenders)
    told = "; ".join(f"{each.packer.name} {each.told()}" for each in contenders)
    _log.info("dense layers are computed by %s (ms by rows: %s)", winner.name, told)
    return winner


def best(contenders: Sequence["Contender"]) -> Packer:
    """Return the fastest of those that were measured to the end, or the first of them, if none is
    clearly faster."""
    most = max(len(each.times_ms) for each in contenders)
    first, *others = (each for each in contenders if len(each.times_ms) == most)
    fastest_other = min(others, key=Contender.mean_ms, default=first)
    is_faster = fastest_other.mean_ms() < _GAIN * first.mean_ms()
    return (fastest_other if is_faster else first).packer


@dataclass(slots=True)
class Contender:
    """A packer in the measurement."""

    packer: Packer
    packed: Sequence[PackedWeight]
    times_ms: dict[int, float] = field(default_factory=dict)
    """The least for each number of rows."""

    def run(self, rows: int, inputs: Sequence[Tensor]) -> None:
        """Take the time of all weights with their ``inputs [rows, in_i]``."""
        # One thread's own time leaves out what neighbours of this process take; of several threads
        # it would leave out the others.
        now = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        start = now()
        for weight, x in zip(self.packed, inputs, strict=True):
            weight.apply(x, None)
        taken_ms = (now() - start) * 1e3
        self.times_ms[rows] = min(taken_ms, self.times_ms.get(rows, math.inf))

    def mean_ms(self) -> float:
        """Return the geometric mean of the times: each number of rows weighs as much."""
        times_ms = (max(each, _CLOCK_MS) for each in self.times_ms.values())
        return math.exp(sum(map(math.log, times_ms)) / len(self.times_ms))

    def told(self) -> str:
        """Return the times for a line of the log."""
        return ", ".join(f"{rows}: {ms:.1f}" for rows, ms in self.times_ms.items())


def _sample(weights: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the first of them, and the first outputs of one that is large."""
    left = _SAMPLE_BYTES
    for weight in weights:
        row_bytes = weight.shape[1] * weight.itemsize
        if left < row_bytes:
            return
        part = weight[: left // row_bytes].detach()
        left -= part.nbytes
        yield part


@torch.inference_mode()
def _measured(packers: Sequence[Packer], weights: Sequence[Tensor]) -> Sequence[Contender]:
    """Let all compute all weights for each number of rows in turn; who is hopeless drops out."""
    contenders = [Contender(each, [each.pack([w]) for w in weights]) for each in packers]
    racing: Sequence[Contender] = contenders
    for rows in _ROWS:
        end = time.perf_counter() + _BUDGET_S / len(_ROWS)
        inputs = [torch.ones(rows, weight.shape[1], dtype=weight.dtype) for weight in weights]
        for done in range(_MAX_ROUNDS):
            if done >= _MIN_ROUNDS and time.perf_counter() > end:
                break
            for contender in racing:
                contender.run(rows, inputs)
        least_ms = min(contender.times_ms[rows] for contender in racing)
        racing = [each for each in racing if each.times_ms[rows] < _HOPELESS * least_ms]
        if len(racing) == 1:
            break
    return contenders
