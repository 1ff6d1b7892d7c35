"""Steps of 16 requests whose adapters' ranks have other sums, and steps at a long context."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loraplex.engine.model import LoadedModel
from loraplex.platform.bench.adapters import BenchAdapter, write_adapters
from loraplex.platform.bench.decode import Ask, ask_all
from loraplex.platform.bench.prompts import Prompts
from loraplex.platform.bench.series import Case, Probe, Series
from loraplex.platform.worker import EngineParts

NUM_REQUESTS = 16
LONG_TOKENS = 256
LONG_NEW_TOKENS = 6
_SHORT_TOKENS = 16
_STEPS = 8
_PROMPT_SET = 1 << 20
"""Tells these prompts from those of other cases."""

LARGE_RANK = 128
FEWER: Mapping[int, int] = {8: 15}
"""Beside whom one of a large rank is put."""
WITH_LARGE: Mapping[int, int] = {8: 15, LARGE_RANK: 1}
MIXES: Sequence[Mapping[int, int]] = (
    FEWER,
    {8: 16},
    {8: 12, 16: 4},
    {8: 12, 32: 4},
    WITH_LARGE,
    {8: 12, 64: 4},
    {8: 8, 32: 4, 64: 4},
    {8: 4, 16: 4, 32: 4, 64: 4},
    {8: 3, 16: 4, 32: 4, 64: 4, LARGE_RANK: 1},
)
"""Requests by rank, each on an adapter of its own."""


def rank_sum(mix: Mapping[int, int]) -> int:
    """Σ rank of all requests."""
    return sum(rank * count for rank, count in mix.items())


def mix_series(mix: Mapping[int, int]) -> Series:
    """The series of one mix."""
    return Series("step_ms", "loraplex", "ranks", sum(mix.values()), rank_sum=rank_sum(mix))


def write_more(
    model: LoadedModel, data_dir: Path, seed: int, adapters: Sequence[BenchAdapter]
) -> Iterator[BenchAdapter]:
    """Write the adapters that mixes need beside those that are there."""
    for rank in sorted({rank for mix in MIXES for rank in mix}):
        needed = max(mix.get(rank, 0) for mix in MIXES)
        missing = needed - sum(adapter.rank == rank for adapter in adapters)
        yield from write_adapters(model, data_dir, seed + 1 + rank, max(0, missing), (rank,))


@dataclass(frozen=True, slots=True)
class StepProbes:
    """Measures the fastest decode step of a batch."""

    parts: EngineParts
    prompts: Prompts
    max_model_len: int
    clock: Callable[[], float]

    def long(self, adapters: Sequence[BenchAdapter]) -> list[tuple[str, Probe]]:
        """Prefill and steps of 16 requests of 256 tokens, or of what the model holds: on the base
        model, and each on an adapter of its own."""
        num_tokens = min(LONG_TOKENS, self.max_model_len - LONG_NEW_TOKENS)
        each: list[str | None] = [adapter.digest for adapter in adapters[:NUM_REQUESTS]]
        cases: dict[Case, list[str | None]] = {
            "long_base": [None] * NUM_REQUESTS,
            "long_distinct": each,
        }
        return [self._long_probe(case, asked, num_tokens) for case, asked in cases.items()]

    def by_ranks(self, adapters: Sequence[BenchAdapter]) -> list[tuple[str, Probe]]:
        """Steps of the mixes."""
        return [self._mix_probe(mix, adapters) for mix in MIXES]

    def _long_probe(
        self, case: Case, digests: Sequence[str | None], num_tokens: int
    ) -> tuple[str, Probe]:
        step = Series("step_ms", "loraplex", case, NUM_REQUESTS)
        prefill = Series("prefill_ms", "loraplex", case, NUM_REQUESTS)

        def probe(repeat: int) -> Mapping[Series, float]:
            asks = self._asks(digests, num_tokens, repeat)
            answer = ask_all(self.parts, asks, LONG_NEW_TOKENS, clock=self.clock)
            return {step: min(answer.step_s) * 1e3, prefill: answer.all_first_s * 1e3}

        return str(step), probe

    def _mix_probe(
        self, mix: Mapping[int, int], adapters: Sequence[BenchAdapter]
    ) -> tuple[str, Probe]:
        series = mix_series(mix)
        digests = [
            adapter.digest
            for rank, count in mix.items()
            for adapter in [a for a in adapters if a.rank == rank][:count]
        ]

        def probe(repeat: int) -> Mapping[Series, float]:
            asks = self._asks(digests, _SHORT_TOKENS, repeat)
            answer = ask_all(self.parts, asks, _STEPS + 1, clock=self.clock)
            return {series: min(answer.step_s) * 1e3}

        return str(series), probe

    def _asks(self, digests: Sequence[str | None], num_tokens: int, repeat: int) -> list[Ask]:
        return [
            Ask(digest, self.prompts.draw(num_tokens, _PROMPT_SET, repeat, index))
            for index, digest in enumerate(digests)
        ]


@dataclass(frozen=True, slots=True)
class RankFit:
    """A straight line through step times by Σ rank."""

    rank_sums: tuple[int, ...]
    step_ms: tuple[float, ...]
    """The fastest of the run."""
    slope_ms: float
    """Of one rank more, on all layers."""
    at_zero_ms: float
    r_squared: float


def fit_ranks(values: Mapping[Series, Sequence[float]]) -> RankFit | None:
    """Fit the mixes of 16 by least squares; None where they were not measured."""
    fitted = [mix_series(mix) for mix in MIXES if sum(mix.values()) == NUM_REQUESTS]
    if not all(series in values for series in fitted):
        return None
    sums = np.array([series.rank_sum for series in fitted], dtype=float)
    step_ms = np.array([min(values[series]) for series in fitted])
    slope, at_zero = np.polyfit(sums, step_ms, 1)
    rest = step_ms - (slope * sums + at_zero)
    r_squared = 1 - (rest**2).sum() / ((step_ms - step_ms.mean()) ** 2).sum()
    return RankFit(
        tuple(int(each) for each in sums),
        tuple(float(each) for each in step_ms),
        float(slope),
        float(at_zero),
        float(r_squared),
    )
