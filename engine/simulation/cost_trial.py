"""How well the cost model learns a device.

Steps are those of a worker with 1 to 250 decodes, prompts in chunks of up to 512 tokens, contexts
and prompt lengths log-normal, up to 32 adapters of ranks 8 to 64, and copies now and then. After
1,000 steps the device becomes 1.3 times as slow and 2 ms a step.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loraplex.engine.cost import CostModel, Subject
from loraplex.engine.cost_errors import decision_regret
from loraplex.engine.cost_features import StepFeatures
from loraplex.engine.simulation.devices import StepTimes

_MAX_CHUNK = 512
_LEARNED, _BEFORE_DRIFT, _RECOVERED, _END = 300, 1000, 1200, 1500


@dataclass(frozen=True, slots=True)
class Trial:
    """Relative errors, in percent, of predictions made before their steps were learned."""

    p50: float
    """Of what was measured, steps 300 to 1,000; so are the next three."""
    p95: float
    p99: float
    true_p95: float
    """Of the time without noise."""
    noise_p95: float
    """Of a model that knows the device: what noise alone makes."""
    drift_p95: float
    """Of what was measured, from 200 steps after the device has changed."""
    regret: float
    """Mean part of the best rate of prompt tokens that choosing a chunk by prediction missed."""


def try_model(times: StepTimes, noise: float, seed: int = 0) -> Trial:
    """Let a model learn a device, whose times have a relative standard deviation of `noise`."""
    rng = np.random.default_rng((seed, 1))
    model = CostModel(Subject("trial", "device"))
    predicted, measured, true, regrets = [], [], [], []
    for number, step in enumerate(trial_steps(_END, seed)):
        ms = times.step_ms(step)
        if number >= _BEFORE_DRIFT:
            ms = 1.3 * ms + 2.0
        elif number >= _LEARNED and number % 7 == 0:
            regrets.append(_regret(model, times, step))
        noisy = ms * max(0.2, 1 + rng.normal(0, noise))
        predicted.append(model.predict_ms(step))
        measured.append(noisy)
        true.append(ms)
        model.observe(step, noisy)
    guesses, seen, truth = np.array(predicted), np.array(measured), np.array(true)
    learned, recovered = slice(_LEARNED, _BEFORE_DRIFT), slice(_RECOVERED, _END)
    errors = 100 * np.abs(guesses / seen - 1)
    p50, p95, p99 = np.percentile(errors[learned], (50, 95, 99)).tolist()
    return Trial(
        p50=p50,
        p95=p95,
        p99=p99,
        true_p95=float(np.percentile(100 * np.abs(guesses / truth - 1)[learned], 95)),
        noise_p95=float(np.percentile(100 * np.abs(truth / seen - 1)[learned], 95)),
        drift_p95=float(np.percentile(errors[recovered], 95)),
        regret=100 * float(np.mean(regrets)),
    )


def trial_steps(count: int, seed: int) -> Iterator[StepFeatures]:
    """Steps of a worker, one after the other."""
    rng = np.random.default_rng((seed, 0))
    level = 60.0
    for _ in range(count):
        jump = rng.normal(0, 60) if rng.random() < 0.02 else 0.0
        level = float(np.clip(level + rng.normal(0, 6) + jump, 1, 250))
        decodes, chunk, start = int(level), 0, 0
        if rng.random() < 0.45:
            chunk = int(min(_MAX_CHUNK - decodes, rng.lognormal(6.6, 0.9)))
            start = int(rng.lognormal(6, 1))
        contexts = rng.lognormal(6.9, 0.6, decodes).clip(16, 8000)
        num_adapters = int(rng.integers(1, min(decodes, 32) + 1))
        in_flight = int(rng.integers(10**7, 3 * 10**8)) if rng.random() < 0.25 else 0
        yield StepFeatures(
            num_tokens=decodes + chunk,
            num_decodes=decodes,
            prefill_tokens=chunk,
            prefill_squared=float(chunk * chunk),
            prefill_context=float(chunk * start),
            kv_tokens=int(contexts.sum()),
            sum_rank=float(rng.choice((8, 16, 32, 64), num_adapters).sum()),
            num_adapters=num_adapters,
            bytes_in_flight=in_flight,
        )


def _regret(model: CostModel, times: StepTimes, step: StepFeatures) -> float:
    """Of choosing one of 64 chunks beside the step's decodes, within the median of their times."""
    decodes = StepFeatures(
        num_tokens=step.num_decodes,
        num_decodes=step.num_decodes,
        prefill_tokens=0,
        prefill_squared=0.0,
        prefill_context=0.0,
        kv_tokens=step.kv_tokens,
        sum_rank=step.sum_rank,
        num_adapters=step.num_adapters,
        bytes_in_flight=step.bytes_in_flight,
    )
    sizes = np.unique(np.linspace(8, _MAX_CHUNK - step.num_decodes, 64).astype(int))
    truth = [times.step_ms(decodes.with_chunk(size, 500)) for size in sizes.tolist()]
    guesses = model.predict_chunks_ms(decodes, sizes.astype(float), 500)
    return decision_regret(guesses, truth, sizes.astype(float), float(np.median(truth)))
