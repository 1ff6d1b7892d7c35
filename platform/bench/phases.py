"""Where the time of a step goes: stop-watches around the parts of a step, on the host's clock.

Nothing of the engine is changed. Its modules call their adapters and their attention through
attributes and arguments, and a stop-watch takes the place of what is called there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any

from torch import Tensor

from loraplex.engine import gate
from loraplex.engine.core import StepReport
from loraplex.engine.frames import encode
from loraplex.engine.linear_group import Detour
from loraplex.engine.lora_batch import LoraBatch
from loraplex.engine.lora_linear import LoraConv1D, LoraLinear
from loraplex.engine.model import LoadedModel
from loraplex.kernels.segments import Slices
from loraplex.platform.bench.bare import with_own_modules
from loraplex.platform.bench.errors import BenchRefused

PHASES = (
    "plan",
    "build",
    "dense",
    "lora",
    "attention",
    "other",
    "sampling",
    "commit",
    "frames",
)
"""In the order of a step; together they are the whole step."""


@dataclass(slots=True)
class StopWatch:
    """Seconds since the last `lap`, by what was measured."""

    forward_s: float = 0.0
    linear_s: float = 0.0
    """Linear layers with their adapters."""
    lora_s: float = 0.0
    attention_s: float = 0.0

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Add the time of the block to one field."""
        started = perf_counter()
        yield
        setattr(self, name, getattr(self, name) + perf_counter() - started)

    def lap(self, report: StepReport, request_ids: tuple[str, ...]) -> dict[str, float]:
        """Seconds of each phase of the step that just ran; starts afresh.

        The step's events are put into the frame that a gateway gets, to time that too.
        """
        started = perf_counter()
        encode(report.events.frame("bench", report.plan.step, request_ids))
        phases_s = {
            "plan": report.plan_s,
            "build": report.build_s,
            "dense": self.linear_s - self.lora_s,
            "lora": self.lora_s,
            "attention": self.attention_s,
            "other": self.forward_s - self.linear_s - self.attention_s,
            "sampling": report.run_s - self.forward_s,
            "commit": report.commit_s,
            "frames": perf_counter() - started,
        }
        self.forward_s = self.linear_s = self.lora_s = self.attention_s = 0.0
        return phases_s


def timed(model: LoadedModel, watch: StopWatch) -> LoadedModel:
    """The same weights behind stop-watches; `attach` them once a runner has the model.

    Raises BenchRefused on a GPU, which computes after its calls have returned.
    """
    if model.device.type != "cpu":
        raise BenchRefused(
            f"--profile measures on the host, and {model.device} computes beside it; "
            "set LORAPLEX_DEVICE=cpu or leave --profile out"
        )
    own = with_own_modules(model)
    parts: dict[str, Any] = {field.name: getattr(own, field.name) for field in fields(own)}
    return _TimedModel(**parts, watch=watch)


def attach(model: LoadedModel, watch: StopWatch) -> None:
    """Time the linear layers of a model that a runner has taken over."""
    timed_lora = _TimedLora(model.lora, watch)
    for layer in model.network.modules():
        if isinstance(layer, LoraLinear | LoraConv1D):
            _time_layer(layer, watch)
            layer.group.updates = timed_lora


def _time_layer(layer: LoraLinear | LoraConv1D, watch: StopWatch) -> None:
    started_s = 0.0

    def start(*_: object) -> None:
        nonlocal started_s
        started_s = perf_counter()

    def stop(*_: object) -> None:
        watch.linear_s += perf_counter() - started_s

    layer.register_forward_pre_hook(start)
    layer.register_forward_hook(stop)


@dataclass(frozen=True, slots=True)
class _TimedLora:
    lora: LoraBatch
    watch: StopWatch

    @property
    def detour(self) -> Detour | None:
        return self.lora.detour

    def linear(self, slices: Slices, y: Tensor, x: Tensor) -> Tensor:
        with self.watch.timing("lora_s"):
            return self.lora.linear(slices, y, x)


@dataclass(frozen=True, slots=True)
class _TimedAttention:
    step: gate.AttentionStep
    watch: StopWatch

    def attend(self, *args: Any, **options: Any) -> Tensor:  # noqa: ANN401  passed on as they are
        with self.watch.timing("attention_s"):
            return self.step.attend(*args, **options)


@dataclass(frozen=True, slots=True)
class _TimedModel(LoadedModel):
    watch: StopWatch

    def logits(
        self, input_ids: Tensor, positions: Tensor, rows: Tensor, step: gate.AttentionStep
    ) -> Tensor:
        timed_step = _TimedAttention(step, self.watch)
        with self.watch.timing("forward_s"):
            return LoadedModel.logits(self, input_ids, positions, rows, timed_step)
