"""The worker's cost model: as it was saved, or else learned before there is traffic."""

import hashlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from loraplex.engine.calibration import Calibration
from loraplex.engine.config import SchedulerConfig
from loraplex.engine.cost import CostModel, Subject
from loraplex.engine.cost_features import StepFeatures
from loraplex.engine.runner import ModelRunner
from loraplex.engine.saved_costs import CostFile
from loraplex.engine.synthetic_adapters import synthetic_adapters
from loraplex.platform.processor import cpu_name
from loraplex.platform.settings import Settings

_log = logging.getLogger(__name__)

SAVE_EVERY_S = 300.0


@dataclass(slots=True)
class KeptCosts:
    """A cost model that outlives its process."""

    model: CostModel
    file: CostFile
    saved_s: float
    """When it was saved last, by a monotonic clock."""
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "costs"))
    """Its one thread writes in order, so that what was saved last is what stays."""

    def due(self, now: float) -> bytes | None:
        """What to save now; None if that was done not long ago. On the engine's thread."""
        if now - self.saved_s < SAVE_EVERY_S:
            return None
        self.saved_s = now
        return self.model.to_json()

    def write(self, saved: bytes) -> None:
        """Write what was due, on a thread of its own."""
        self._writer.submit(self.file.write, saved)

    def close(self) -> None:
        """Save it, and return when all is written. Not while the engine's thread runs."""
        self.write(self.model.to_json())
        self._writer.shutdown()


def prepare_costs(
    settings: Settings,
    runner: ModelRunner,
    config: SchedulerConfig,
    adapter_bytes: int,
    is_stopped: Callable[[], bool],
) -> KeptCosts:
    """What was learned of this model on this device before, or else within a few seconds now.

    `adapter_bytes` is the memory for adapters; the time is `settings.calibration_s`.
    """
    file = CostFile(settings.costs_dir, subject_of(runner))
    costs = file.read() or CostModel(file.subject)
    if costs.num_steps >= config.min_learned_steps:
        _log.info("step times are known from %d steps before", costs.num_steps)
    elif settings.calibration_s > 0:
        model = runner.model
        adapters = synthetic_adapters(
            model.shapes, model.dtype, model.device, adapter_bytes, runner.locate
        )
        costs = _calibrated(
            costs, Calibration(runner, config, adapters, time.perf_counter), settings, is_stopped
        )
        file.write(costs.to_json())
    return KeptCosts(costs, file, time.monotonic())


def subject_of(runner: ModelRunner) -> Subject:
    """What step times depend on and a worker cannot change while it runs."""
    model = runner.model
    shapes = sorted(model.shapes.linears.items())
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()[:8]
    dtype = str(model.dtype).removeprefix("torch.")
    if model.device.type == "cuda":
        device = torch.cuda.get_device_name()
    else:
        device = f"{cpu_name()}, {torch.get_num_threads()} threads"
    return Subject(
        f"{model.config.name} in {dtype} (shapes {digest}), blocks of {runner.block_size} tokens",
        f"{device}, {runner.kernels}, torch {torch.__version__}",
    )


def _calibrated(
    costs: CostModel,
    calibration: Calibration,
    settings: Settings,
    is_stopped: Callable[[], bool],
) -> CostModel:
    """The model after calibration; its errors count from now on. As it was, if that failed."""
    _log.info("learning how long steps take, once, for up to %g s", settings.calibration_s)
    try:
        done = calibration.run(costs, settings.calibration_s, is_stopped)
        learned = CostModel.from_json(costs.to_json())
    except Exception:  # noqa: BLE001  it serves without, and learns as it runs
        _log.exception("step times could not be measured before there is traffic")
        return CostModel(costs.subject)
    _log.info(
        "learned from %d steps in %.1f s: a decode takes %.1f ms, a prompt of 256 tokens %.0f ms",
        done.num_steps,
        done.seconds,
        learned.predict_ms(StepFeatures(1, 1, 0, 0.0, 0.0, 32)),
        learned.predict_ms(StepFeatures(256, 0, 256, 256.0**2, 0.0, 0)),
    )
    return learned
