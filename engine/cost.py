"""How long a step takes, learned while the engine runs. Pure Python and numpy.

    ms = constant + n·slope + steps at edges of n + decodes + KV read + prefill² + prefill·context
         + prompts at all + ranks + adapters + bytes in flight,   times what is left over near n

The terms are those of published predictors: a linear layer's time and attention's terms that are
fitted while running (recursive least squares with forgetting, as "DCP", OSDI 2026, does), ranks and
adapters (https://arxiv.org/abs/2401.11240), and hardware steps, whose places differ between devices
and models, so that they are learned. Errors count relative to the measured time.

Least squares are kept in information form: two sums, discounted at each step. So the terms can be
chosen anew from all data at any time: none may be negative, and an edge stays only while it is
significant.
"""

from dataclasses import dataclass
from math import inf, sqrt

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from loraplex.engine.cost_errors import (
    Choice,
    DriftAlarm,
    ErrorPercentiles,
    ErrorWindow,
    Hindsight,
)
from loraplex.engine.cost_features import (
    EDGES,
    NUM_FEATURES,
    NUM_SMOOTH,
    CostTerms,
    Floats,
    Rows,
    StepFeatures,
    vector,
)
from loraplex.engine.errors import CostModelInvalid

_FORGETTING = 0.999
_FORGETTING_AFTER_DRIFT = 0.99
_STEPS_AFTER_DRIFT = 200
_KEPT_AT_DRIFT = 0.05
_NEEDED_T = np.array([0.0] * NUM_SMOOTH + [2.5] * (NUM_FEATURES - NUM_SMOOTH))
"""What a weight must be in standard deviations to be kept: an edge has to be significant."""
_REFIT_EVERY, _REFIT_EVERY_WHEN_YOUNG, _YOUNG_STEPS = 64, 8, 512
_MAX_UNSUMMED = 8
"""Steps whose equations are added to the sums together: one product of matrices for all."""
_RIDGE = 1e-5
_SHORTEST_MS, _LONGEST_MS = 1e-3, 1e7
_PRIOR_MS = np.array([10.0, 10.0, *[0.0] * (NUM_FEATURES - 2)])
_BUCKET_TOKENS = 16
_NUM_BUCKETS = 256
_LEFT_OVER_RATE = 0.95
_LEFT_OVER_PRIOR_STEPS = 4.0
_LEAST_SURPLUS, _MOST_SURPLUS = -0.5, 1.0
"""Bounds of what one step leaves over, relative to its fit: so factors are within 0.5 and 2."""
_MOST_STEPS, _MOST_CHUNKS, _ROUNDING = 10**12, 1e6, 1e-6


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A cost model as JSON."""

    format: int
    model: str
    device: str
    edges: tuple[int, ...]
    gram: list[list[float]]
    moment: list[float]
    error_variance: float
    num_steps: int
    mean_chunks: float
    left_over: list[float]
    left_over_weight: list[float]


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose time is predicted: a saved model is good for nothing else."""

    model: str
    device: str


class CostModel:
    """Predicts steps of one model on one device. Belongs to one thread."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.num_alarms = 0
        self.num_steps = 0
        """Steps that it has learned from."""
        self._gram: Floats = np.zeros((NUM_FEATURES, NUM_FEATURES))
        self._moment: Floats = np.zeros(NUM_FEATURES)
        self._unsummed: Floats = np.zeros((_MAX_UNSUMMED, NUM_FEATURES))
        self._num_unsummed = 0
        self._forgetting = _FORGETTING
        self._error_variance = 0.01
        self._terms = CostTerms.of(_PRIOR_MS)
        self._steps_of_drift = 0
        self._level = 1.0
        self._mean_chunks = 1.0
        self._left_over: Floats = np.zeros(_NUM_BUCKETS)
        self._left_over_weight: Floats = np.zeros(_NUM_BUCKETS)
        self._factors: Floats = np.ones(_NUM_BUCKETS)
        self._alarm = DriftAlarm()
        self._errors = ErrorWindow()
        self._hindsight = Hindsight(self.predict_chunks_ms)

    @property
    def error(self) -> float:
        """Standard deviation of the relative errors of its fit, of late."""
        return sqrt(self._error_variance)

    @property
    def edges(self) -> tuple[int, ...]:
        """Numbers of tokens after which a step takes noticeably longer."""
        kept = np.diff(self._terms.edge_ms) > 0
        return tuple(edge for edge, is_kept in zip(EDGES, kept, strict=True) if is_kept)

    @property
    def terms(self) -> CostTerms:
        """What it has learned, without what it left over."""
        return self._terms

    def errors(self, newest: int = 512) -> ErrorPercentiles:
        """Relative errors of predictions made before their steps were learned."""
        return self._errors.percentiles(newest)

    def regrets(self) -> ErrorPercentiles:
        """What choices of sizes lost, as far as it knows now; see `Hindsight`."""
        return self._hindsight.percentiles()

    def note_choice(self, choice: Choice) -> None:
        """Judge a choice once more has been learned."""
        self._hindsight.note(choice, self.num_steps)

    def predict_ms(self, step: StepFeatures) -> float:
        """Time of one step in ms, never negative."""
        return self._terms.step_ms(step) * float(self._factors[_bucket(step.num_tokens)])

    def predict_chunks_ms(
        self, step: StepFeatures, chunk_tokens: ArrayLike, start: int, longest: float = inf
    ) -> Floats:
        """Times of a step with one more chunk of a prompt, for each of k sizes of that chunk.

        `chunk_tokens`: shape (k,); `start`: tokens of the prompt that are computed already;
        `longest`: tokens of a prompt, where the chunk is of several; 0 leaves attention among the
        chunk's tokens out, which is the same however prompts are divided.
        Returns ms, float64 of shape (k,), never negative.
        """
        sizes = np.asarray(chunk_tokens, np.float64)
        buckets = ((step.num_tokens + sizes - 1.0) / _BUCKET_TOKENS).astype(np.intp)
        factors = self._factors.take(buckets, mode="clip")
        return self._terms.chunks_ms(step, sizes, start, longest) * factors

    def observe(self, step: StepFeatures, ms: float) -> None:
        """Learn from a step that took `ms`. Nothing is learned from a time that is no time."""
        if not _SHORTEST_MS <= ms <= _LONGEST_MS or step.num_tokens < 1:
            return
        fitted = self._terms.step_ms(step)
        bucket = _bucket(step.num_tokens)
        error = fitted * float(self._factors[bucket]) / ms - 1.0
        self._errors.add(error)
        self.num_steps += 1
        self._mean_chunks += 0.02 * (step.num_decodes + 1 - self._mean_chunks)
        surplus = ms / fitted - 1.0 if fitted > 0 else 0.0
        surplus = min(_MOST_SURPLUS, max(_LEAST_SURPLUS, surplus))
        self._level += 0.1 * (1.0 + surplus - self._level)
        self._learn(vector(step) / ms, fitted / ms - 1.0)
        self._learn_left_over(bucket, surplus)
        if self._alarm.observe(error):
            self._forget()
            self._refit()
        is_young = self._steps_of_drift > 0 or self.num_steps < _YOUNG_STEPS
        if self.num_steps % (_REFIT_EVERY_WHEN_YOUNG if is_young else _REFIT_EVERY) == 0:
            self._refit()

    def request_ms(
        self,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: float,
        rank: float = 0.0,
        load_bytes: int = 0,
    ) -> float:
        """What a request costs the machine from start to end, in ms: its prefill, its part of the
        steps in which it decodes, and what loading its adapter slows others down.

        It shares the constant of a step with as many others as steps had of late.
        """
        prefill = max(1, prompt_tokens - cached_tokens)
        terms, others = self._terms, self._mean_chunks
        fixed_ms = terms.constant_ms / others + terms.rank_ms * rank
        attended_ms = terms.squared_ms * prefill + terms.context_ms * cached_tokens
        prefill_ms = fixed_ms + terms.prompts_ms / others + prefill * (terms.token_ms + attended_ms)
        read_ms = terms.kv_token_ms * (prompt_tokens + output_tokens / 2)
        decode_ms = fixed_ms + terms.token_ms + terms.decode_ms + read_ms
        return max(0.0, prefill_ms + output_tokens * decode_ms + terms.byte_ms * load_bytes)

    def shares(self, rows: Rows, step_ms: float) -> Floats:
        """Divide a step's time among its chunks; shape (rows,), in ms, with sum `step_ms`.

        A chunk's claim is the larger of its share of the predicted time and its share of the KV
        tokens that the step's requests hold; claims are scaled to the time.
        """
        if not len(rows):
            return np.zeros(0)
        time, held = self._terms.rows_ms(rows), rows.held_tokens()
        total = float(time.sum())
        if total > 0:
            time /= total
        else:
            time[:] = 1.0 / len(rows)
        held /= held.sum()
        claim = np.maximum(time, held)
        claim *= step_ms / claim.sum()
        return claim

    def to_json(self) -> bytes:
        """Return all that was learned, but for the newest errors."""
        self._sum_up()
        saved = _Saved(
            format=2,
            model=self.subject.model,
            device=self.subject.device,
            edges=EDGES,
            gram=self._gram.tolist(),
            moment=self._moment.tolist(),
            error_variance=self._error_variance,
            num_steps=self.num_steps,
            mean_chunks=self._mean_chunks,
            left_over=self._left_over.tolist(),
            left_over_weight=self._left_over_weight.tolist(),
        )
        return msgspec.json.encode(saved)

    @classmethod
    def from_json(cls, data: bytes) -> "CostModel":
        """Go on from what `to_json` returned; check `subject` before use.

        Raises CostModelInvalid if it is none, or of another format.
        """
        try:
            saved = msgspec.json.decode(data, type=_Saved)
            gram, moment = np.array(saved.gram, float), np.array(saved.moment, float)
            left_over = np.array([saved.left_over, saved.left_over_weight], float)
        except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
            raise CostModelInvalid(f"this is no saved cost model: {error}") from error
        model = cls(Subject(saved.model, saved.device))
        if (
            (saved.format, saved.edges) != (2, EDGES)
            or (gram.shape, moment.shape) != (model._gram.shape, model._moment.shape)
            or left_over.shape != (2, _NUM_BUCKETS)
        ):
            raise CostModelInvalid(
                "the saved cost model is of another version; delete the file, it is learned anew"
            )
        model._gram, model._moment = gram, moment
        model._left_over, model._left_over_weight = left_over
        model._error_variance, model.num_steps = saved.error_variance, saved.num_steps
        model._mean_chunks = max(1.0, saved.mean_chunks)
        try:
            with np.errstate(over="raise", invalid="raise", divide="raise"):
                model._refit()
                is_sound = model._is_within_bounds() and model._is_sound()
        except (np.linalg.LinAlgError, FloatingPointError) as error:
            raise CostModelInvalid(f"its numbers are no cost model's: {error}") from error
        if not is_sound:
            raise CostModelInvalid("its numbers are no cost model's: they predict no time")
        return model

    def _is_within_bounds(self) -> bool:
        """True if learning could have led to its counts, its error, and what it left over."""
        left_over, weight = self._left_over, self._left_over_weight
        return bool(
            0 <= self.num_steps <= _MOST_STEPS
            and self._mean_chunks <= _MOST_CHUNKS
            and 0 <= self._error_variance <= 1.0 + _ROUNDING
            and (weight >= 0).all()
            and (weight <= 1.0 / (1.0 - _LEFT_OVER_RATE) + _ROUNDING).all()
            and (left_over >= _LEAST_SURPLUS * weight - _ROUNDING).all()
            and (left_over <= _MOST_SURPLUS * weight + _ROUNDING).all()
        )

    def _is_sound(self) -> bool:
        """True if its sums can be of steps that ran, and it predicts times for short and long."""
        is_sum = np.allclose(self._gram, self._gram.T)
        least = np.linalg.eigvalsh(self._gram).min() if is_sum else -np.inf
        steps = [
            StepFeatures(1, 1, 0, 0.0, 0.0, 32),
            *(StepFeatures(n, 0, n, float(n) ** 2, 0.0, 0) for n in (16, 256, 4096)),
            StepFeatures(4096, 64, 4032, 4032.0**2, 4e7, 10**6, 1e3, 64, 0),
        ]
        is_time = all(0 <= self.predict_ms(step) < _LONGEST_MS for step in steps)
        return bool(least >= -1e-6 * self._gram.trace() and is_time)

    def _learn(self, relative: Floats, fit_error: float) -> None:
        """Add one equation `relative · weights = 1`."""
        forgetting = _FORGETTING
        if self._steps_of_drift:
            self._steps_of_drift -= 1
            forgetting = _FORGETTING_AFTER_DRIFT
        if forgetting != self._forgetting or self._num_unsummed == _MAX_UNSUMMED:
            self._sum_up()
            self._forgetting = forgetting
        self._unsummed[self._num_unsummed] = relative
        self._num_unsummed += 1
        squared = min(fit_error * fit_error, 1.0)
        self._error_variance += 0.01 * (squared - self._error_variance)

    def _sum_up(self) -> None:
        """Add the newest equations to the sums, each discounted by those after it."""
        count, forgetting = self._num_unsummed, self._forgetting
        self._num_unsummed = 0
        equations = self._unsummed[:count]
        discounted = equations * (forgetting ** np.arange(count - 1, -1, -1.0))[:, None]
        self._gram *= forgetting**count
        self._gram += equations.T @ discounted
        self._moment *= forgetting**count
        self._moment += discounted.sum(axis=0)

    def _learn_left_over(self, bucket: int, surplus: float) -> None:
        """What the fit leaves over near this number of tokens, shrunk towards nothing."""
        self._left_over[bucket] *= _LEFT_OVER_RATE
        self._left_over[bucket] += surplus
        self._left_over_weight[bucket] *= _LEFT_OVER_RATE
        self._left_over_weight[bucket] += 1.0
        weight = self._left_over_weight[bucket] + _LEFT_OVER_PRIOR_STEPS
        self._factors[bucket] = 1.0 + self._left_over[bucket] / weight

    def _forget(self) -> None:
        """The machine has changed: keep little of what was, and forget faster for a while."""
        self._sum_up()
        self.num_alarms += 1
        self._steps_of_drift = _STEPS_AFTER_DRIFT
        # As if what is kept had been measured on the machine as it is now.
        self._gram *= _KEPT_AT_DRIFT / self._level**2
        self._moment *= _KEPT_AT_DRIFT / self._level
        self._level = 1.0
        self._left_over[:] = self._left_over_weight[:] = 0.0
        self._factors[:] = 1.0

    def _refit(self) -> None:
        """Solve anew, without what would be negative and edges that do not matter."""
        self._sum_up()
        ridge = _RIDGE * max(float(self._gram.trace()) / NUM_FEATURES, 1e-9)
        surplus = np.full(NUM_FEATURES, np.inf)
        kept = self._gram.diagonal() > 0
        inverse = np.linalg.inv(self._gram + np.diag(np.where(kept, ridge, 1.0)))
        weights = inverse @ np.where(kept, self._moment + ridge * _PRIOR_MS, 0.0)
        while kept.any():
            deviation = np.sqrt(np.maximum(inverse.diagonal(), 0) * self._error_variance) + 1e-12
            np.subtract(weights / deviation, _NEEDED_T, out=surplus, where=kept)
            worst = int(surplus.argmin())
            if surplus[worst] >= 0:
                break
            # The solution without it, from the one with it: a step of Gauss and Jordan.
            without = inverse[:, worst] / inverse[worst, worst]
            weights -= without * weights[worst]
            inverse -= np.outer(without, inverse[worst])
            weights[worst], kept[worst], surplus[worst] = 0.0, False, np.inf
        if weights.any():
            self._terms = CostTerms.of(weights)
        used = self._left_over_weight > 0
        total = self._left_over_weight[used] + _LEFT_OVER_PRIOR_STEPS
        self._factors[used] = 1.0 + self._left_over[used] / total


def _bucket(num_tokens: int) -> int:
    """Of numbers of tokens up to a multiple, since that is where hardware is full."""
    return min(max(0, num_tokens - 1) // _BUCKET_TOKENS, _NUM_BUCKETS - 1)
