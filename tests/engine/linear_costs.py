"""A cost model whose coefficients are known."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.cost_errors import Choice
from loraplex.engine.cost_features import Floats, Rows, StepFeatures


@dataclass
class LinearCosts:
    """A step costs a constant, so much per token and per token of context that a decode reads; a
    load so much per byte. A request pays no constant, so that what it costs alone is additive."""

    constant_ms: float = 0.0
    token_ms: float = 1.0
    context_ms: float = 0.0
    load_ms: float = 10.0
    num_steps: int = 0

    @property
    def error(self) -> float:
        return 0.0

    def predict_ms(self, step: StepFeatures) -> float:
        return self.constant_ms + self.token_ms * step.num_tokens + self.context_ms * step.kv_tokens

    def predict_chunks_ms(
        self, step: StepFeatures, chunk_tokens: NDArray[np.int64], start: int, longest: float
    ) -> Floats:
        return self.predict_ms(step) + self.token_ms * chunk_tokens

    def observe(self, step: StepFeatures, ms: float) -> None:
        self.num_steps += 1

    def note_choice(self, choice: Choice) -> None:
        pass

    def request_ms(
        self,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: float,
        rank: float = 0.0,
        load_bytes: int = 0,
    ) -> float:
        tokens = prompt_tokens - cached_tokens + max(0.0, output_tokens - 1)
        return self.token_ms * tokens + self.load_ms * load_bytes

    def shares(self, rows: Rows, step_ms: float) -> Floats:
        num_tokens = np.array([1] * len(rows.start) + [chunk.num_tokens for chunk in rows.chunks])
        return step_ms * num_tokens / num_tokens.sum()


class KnownLengths:
    """Expects of each request what it is told, up to its cap."""

    def __init__(self, num_tokens: float = float("inf")) -> None:
        self.num_tokens = num_tokens
        self.observed: list[int] = []

    def predict(self, adapter: AdapterKey | None, max_tokens: int, generated: int = 0) -> float:
        return min(max(self.num_tokens, generated + 1.0), max_tokens)

    def observe(self, adapter: AdapterKey | None, num_tokens: int) -> None:
        self.observed.append(num_tokens)
