"""What the scheduler asks of whoever predicts times and lengths."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.cost_errors import Choice
from loraplex.engine.cost_features import Floats, Rows, StepFeatures


class StepCosts(Protocol):
    """Predicts steps of one model on one device; see `engine.cost`."""

    @property
    def num_steps(self) -> int:
        """Steps that it has learned from; below `SchedulerConfig.min_learned_steps` nobody bounds a
        step by its predictions."""
        ...

    @property
    def error(self) -> float:
        """Standard deviation of its relative errors, of late."""
        ...

    def predict_ms(self, step: StepFeatures, /) -> float:
        """Time of one step."""
        ...

    def predict_chunks_ms(
        self, step: StepFeatures, chunk_tokens: NDArray[np.int64], start: int, longest: float
    ) -> Floats:
        """Times of a step with one more chunk of a prompt, for each of k sizes of it: [k];
        `start` tokens of the prompt are computed already. Where the chunk is of several prompts,
        they have at most `longest` tokens; 0 leaves attention among them out."""
        ...

    def observe(self, step: StepFeatures, ms: float) -> None:
        """Learn from a step that took `ms`."""
        ...

    def note_choice(self, choice: Choice, /) -> None:
        """A size was chosen by its predictions, so that what that lost can be told later."""
        ...

    def request_ms(
        self,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: float,
        rank: float = 0.0,
        load_bytes: int = 0,
    ) -> float:
        """What a request costs the machine from start to end, the load of its adapter included."""
        ...

    def shares(self, rows: Rows, step_ms: float) -> Floats:
        """Divide a step's time among its chunks, in their order, [n]; the sum is `step_ms`."""
        ...


class OutputLengths(Protocol):
    """Predicts how many tokens a request will generate."""

    def predict(self, adapter: AdapterKey | None, max_tokens: int, generated: int = 0, /) -> float:
        """Expected output of a choice that has not ended after `generated` tokens, at least one
        more and at most `max_tokens`."""
        ...

    def observe(self, adapter: AdapterKey | None, num_tokens: int, /) -> None:
        """A choice ended by itself after `num_tokens`."""
        ...
