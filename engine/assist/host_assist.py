"""`Assist` by processes of the host; see `assist_port.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from loraplex.adapters.weights import VerifiedAdapter
from loraplex.engine.assist.assistant import Assistant, HostNumbers, Lost
from loraplex.engine.assist.host_copies import HostCopies
from loraplex.engine.assist.process import Update
from loraplex.engine.assist.watch import Watch
from loraplex.engine.assist_port import AssistLost
from loraplex.kernels.staging import host_tensor

MIN_ROWS = 16
"""Of a process: fewer are computed in less time than it takes to ask another."""
MIN_PATIENCE_S, MAX_PATIENCE_S = 0.02, 0.5
"""Bounds of how long a step waits for an answer: decodes wait as long."""
PATIENCE = 3.0
"""Times that it is expected to take, beside the least and within the most."""
_FIRST_S_PER_PRODUCT = 1e-9
_LEARNING = 0.1
"""Weight of the newest answer in what is expected of the next."""


class _Span(NamedTuple):
    """Columns that the updates of some layers have beside each other, in ``y`` too."""

    in_y: int
    in_updates: int
    width: int


@dataclass(frozen=True, slots=True)
class _Task:
    """What is to be done for each row."""

    updates: tuple[Update, ...]
    spans: tuple[_Span, ...]
    in_width: int
    width: int
    """Columns of all updates."""
    num_products: int
    """Of a row."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that one process has."""

    assistant: Assistant
    sequence: int
    start: int
    end: int


class HostAssist:
    """Asks processes that compute from adapters' copies in the host's memory.

    On a GPU, rows come through pinned memory and an event is waited for, so that `ask` waits until
    the device has made them; answers go back without waiting. That has not been run on one.
    """

    def __init__(
        self,
        linears: Mapping[str, tuple[int, int]],
        watch: Watch,
        min_patience_s: float = MIN_PATIENCE_S,
    ) -> None:
        """``linears`` tell (out, in) of the base's linear layers by path."""
        self._linears = linears
        self.watch = watch
        self._copies = HostCopies(watch.forget)
        self._min_patience_s = min_patience_s
        self._s_per_product = _FIRST_S_PER_PRODUCT

    @property
    def num_ready(self) -> int:
        """See `Assist`."""
        return len(self.watch.ready)

    @torch.inference_mode()
    def ask(self, adapter: VerifiedAdapter, paths: Sequence[str], x: Tensor) -> "HostAsked":
        """See `Assist`."""
        task = _task(self._linears, adapter, paths)
        if not task.updates or not len(x):
            return HostAsked(self, task, (), 0.0)
        host = self._copies.of(adapter)
        if host is None:
            raise AssistLost("the adapter's copy on the host cannot be shared")
        rows = _on_host(x)
        while ready := self.watch.ready:
            try:
                return self._asked(ready, host, task, rows)
            except Lost:
                continue
            except OSError as error:  # no memory, or too many files are open
                raise AssistLost(f"nothing can be shared: {error}") from error
        raise AssistLost("no process can be asked")

    def close(self) -> None:
        """See `Assist`."""
        self.watch.close()

    def learn(self, num_products: int, busy_ns: int) -> None:
        """An answer took so long."""
        took_s = busy_ns / 1e9 / num_products
        self._s_per_product += _LEARNING * (took_s - self._s_per_product)

    def _asked(
        self, ready: Sequence[Assistant], host: HostNumbers, task: _Task, x: Tensor
    ) -> "HostAsked":
        num_parts = min(len(ready), max(1, len(x) // MIN_ROWS))
        bounds = np.linspace(0, len(x), num_parts + 1).astype(int).tolist()
        parts = []
        for assistant, start, end in zip(ready, bounds, bounds[1:], strict=False):
            sequence = assistant.ask(host, x[start:end], task.width, task.updates)
            parts.append(_Part(assistant, sequence, start, end))
        expected_s = self._s_per_product * task.num_products * bounds[1]
        most_s = max(self._min_patience_s, MAX_PATIENCE_S)
        patience_s = min(self._min_patience_s + PATIENCE * expected_s, most_s)
        return HostAsked(self, task, tuple(parts), monotonic() + patience_s)


class HostAsked:
    """See `Asked`. A later question to the same processes takes the place of one whose answer was
    not taken."""

    def __init__(
        self, assist: HostAssist, task: _Task, parts: tuple[_Part, ...], deadline_s: float
    ) -> None:
        self._assist = assist
        self._task = task
        self._parts = parts
        self._deadline_s = deadline_s

    @torch.inference_mode()
    def add_to(self, y: Tensor) -> None:
        """See `Asked`."""
        task = self._task
        for part in self._parts:
            try:
                busy_ns = part.assistant.answer(part.sequence, self._deadline_s)
            except Lost as error:
                self._assist.watch.look()
                raise AssistLost(str(error)) from error
            self._assist.learn(task.num_products * (part.end - part.start), busy_ns)
        for part in self._parts:
            self._add(part, y[part.start : part.end])

    def _add(self, part: _Part, y: Tensor) -> None:
        task = self._task
        made = part.assistant.updates(len(y), task.in_width, task.width)
        if y.is_cuda:
            pinned = host_tensor(made.numel(), made.dtype, y.device).view(made.shape)
            made = pinned.copy_(made).to(y.device, non_blocking=True)
        for in_y, in_updates, width in task.spans:
            y[:, in_y : in_y + width].add_(made[:, in_updates : in_updates + width])


def _task(
    linears: Mapping[str, tuple[int, int]], adapter: VerifiedAdapter, paths: Sequence[str]
) -> _Task:
    layout = adapter.pairs.layout
    updates: list[Update] = []
    spans: list[_Span] = []
    column = width = num_products = 0
    for path in paths:
        out, in_width = linears[path]
        number = layout.number_of.get(path)
        if number is not None:
            rank = int(layout.shapes[number, 2])
            a_start, b_start = layout.starts[number].tolist()
            scale = float(layout.scales[number])
            updates.append(Update(width, a_start, b_start, out, rank, scale))
            if spans and column == spans[-1].in_y + spans[-1].width:
                spans[-1] = spans[-1]._replace(width=spans[-1].width + out)
            else:
                spans.append(_Span(column, width, out))
            width += out
            num_products += rank * (in_width + out)
        column += out
    in_width = linears[paths[0]][1]
    return _Task(tuple(updates), tuple(spans), in_width, width, num_products)


def _on_host(x: Tensor) -> Tensor:
    if not x.is_cuda:
        return x
    pinned = host_tensor(x.numel(), x.dtype, x.device).view(x.shape)
    pinned.copy_(x, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types here
    copied.record()
    copied.synchronize()
    return pinned
