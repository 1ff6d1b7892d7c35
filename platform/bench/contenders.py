"""Who is measured in `loraplex bench engine`, and by which requests."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from loraplex.engine.core import StepReport
from loraplex.engine.model import LoadedModel
from loraplex.platform.bench.adapters import BenchAdapter
from loraplex.platform.bench.decode import Ask, ask_all
from loraplex.platform.bench.peft_messages import Batch
from loraplex.platform.bench.peft_peer import PeftPeer
from loraplex.platform.bench.phases import PHASES, StopWatch
from loraplex.platform.bench.series import Case, EnginePlan, ProfileRow, Series
from loraplex.platform.bench.subject import Subject
from loraplex.platform.worker import EngineParts

IDENTICAL = 2
"""Index of the adapter that all share in `identical`: rank 32, the nearest to the mean of all."""

Probe = Callable[[int], float]
"""Measures one value, given the number of the repetition."""


@dataclass(frozen=True, slots=True)
class Watched:
    """An engine with stop-watches in it."""

    parts: EngineParts
    watch: StopWatch


@dataclass(slots=True)
class Contenders:
    """The engines and the peer of one run, all loaded, with the requests that they are asked."""

    plan: EnginePlan
    model: LoadedModel
    adapters: tuple[BenchAdapter, ...]
    lora_off: EngineParts
    watched: Watched | None
    subject: Subject
    peer: PeftPeer | None
    lora_on: EngineParts = field(init=False)
    laps: dict[tuple[Case, int], list[dict[str, float]]] = field(default_factory=dict)
    tokens: dict[tuple[str, int, int], list[list[int]]] = field(default_factory=dict)
    """By engine, number of requests and repetition, of `distinct`."""

    def __post_init__(self) -> None:
        """The engine that serves adapters keeps them; `subject` makes others that have none."""
        self.lora_on = self.subject.new_engine()

    def probes(self) -> dict[Series, Probe]:
        """All that one repetition measures, in order."""
        probes: dict[Series, Probe] = {}
        cases: tuple[Case, ...] = ("distinct", "identical", "base", "base_lora_off")
        for size in self.plan.batch_sizes:
            for case in cases:
                series = Series("decode_tokens_per_s", "loraplex", case, size)
                probes[series] = self._decode_probe(case, size)
            if self.peer is not None:
                series = Series("decode_tokens_per_s", "peft", "distinct", size)
                probes[series] = self._peft_probe(self.peer, size)
            if self.watched is not None:
                for case in ("distinct", "base"):
                    series = Series("profiled_tokens_per_s", "loraplex", case, size)
                    probes[series] = self._watched_probe(self.watched, case, size)
        for adapter in sorted({a.rank: a for a in self.adapters}.values(), key=lambda a: a.rank):
            for case in ("warm", "cold"):
                series = Series("ttft_ms", "loraplex", case, 1, adapter.rank)
                probes[series] = self._ttft_probe(case, adapter.digest)
        return probes

    def warm_up(self) -> None:
        """Load every adapter, and let each contender allocate what it keeps."""
        size = max(self.plan.batch_sizes)
        everything = [Ask(adapter.digest, (1,)) for adapter in self.adapters]
        for first in range(0, len(everything), size):
            for parts in self._with_adapters():
                ask_all(parts, everything[first : first + size], 1)
        ask_all(self.lora_on, self._asks("distinct", size, -1), 2)
        ask_all(self.lora_off, self._asks("base_lora_off", size, -1), 2)
        if self.peer is not None:
            self.peer.run(self._peft_batch(size, -1, 2))

    def close(self) -> None:
        """End the threads that load adapters."""
        for parts in (self.lora_off, *self._with_adapters()):
            parts.transfers.close()

    def profile(self, values: dict[Series, list[float]]) -> tuple[ProfileRow, ...]:
        """Sum up what the stop-watches saw."""
        rows = []
        for (case, size), laps in self.laps.items():
            plain = values[Series("decode_tokens_per_s", "loraplex", case, size)]
            watched = values[Series("profiled_tokens_per_s", "loraplex", case, size)]
            ratios = [fast / slow for fast, slow in zip(plain, watched, strict=True)]
            phases_ms = {name: statistics.fmean(lap[name] for lap in laps) * 1e3 for name in PHASES}
            rows.append(ProfileRow(case, size, phases_ms, statistics.median(ratios)))
        return tuple(rows)

    def tokens_equal(self) -> float | None:
        """Share of tokens that both engines chose alike."""
        pairs = [
            ours == theirs
            for (engine, size, repeat), rows in self.tokens.items()
            if engine == "peft"
            for row, peer_row in zip(self.tokens["loraplex", size, repeat], rows, strict=True)
            for ours, theirs in zip(row, peer_row, strict=True)
        ]
        return statistics.fmean(pairs) if pairs else None

    def _with_adapters(self) -> list[EngineParts]:
        return [self.lora_on, *([self.watched.parts] if self.watched else [])]

    def _decode_probe(self, case: Case, size: int) -> Probe:
        parts = self.lora_off if case == "base_lora_off" else self.lora_on

        def probe(repeat: int) -> float:
            answer = ask_all(parts, self._asks(case, size, repeat), self.plan.new_tokens)
            if case == "distinct":
                self.tokens["loraplex", size, repeat] = answer.token_ids
            return answer.tokens_per_s

        return probe

    def _watched_probe(self, watched: Watched, case: Case, size: int) -> Probe:
        request_ids = tuple(f"request-{index}" for index in range(size))
        laps = self.laps.setdefault((case, size), [])

        def on_step(report: StepReport, *, decodes: bool) -> None:
            lap = watched.watch.lap(report, request_ids)
            if decodes:
                laps.append(lap)

        def probe(repeat: int) -> float:
            asks = self._asks(case, size, repeat)
            return ask_all(watched.parts, asks, self.plan.new_tokens, on_step).tokens_per_s

        return probe

    def _peft_probe(self, peer: PeftPeer, size: int) -> Probe:
        def probe(repeat: int) -> float:
            done = peer.run(self._peft_batch(size, repeat, self.plan.new_tokens))
            self.tokens["peft", size, repeat] = done.token_ids
            return size * len(done.step_s) / sum(done.step_s)

        return probe

    def _ttft_probe(self, case: Case, digest: str) -> Probe:
        def probe(repeat: int) -> float:
            asks = [Ask(digest, self._prompt(1, repeat, 0))]
            parts = self.lora_on if case == "warm" else self.subject.new_engine()
            try:
                return ask_all(parts, asks, 1).first_token_s * 1e3
            finally:
                if case == "cold":
                    parts.transfers.close()

        return probe

    def _asks(self, case: Case, size: int, repeat: int) -> list[Ask]:
        shared = self.adapters[IDENTICAL].digest if case == "identical" else None
        return [
            Ask(
                self.adapters[index % len(self.adapters)].digest if case == "distinct" else shared,
                self._prompt(size, repeat, index),
            )
            for index in range(size)
        ]

    def _peft_batch(self, size: int, repeat: int, new_tokens: int) -> Batch:
        indices = [index % len(self.adapters) for index in range(size)]
        prompts = [self._prompt(size, repeat, index) for index in range(size)]
        return Batch(indices, prompts, new_tokens)

    def _prompt(self, size: int, repeat: int, index: int) -> tuple[int, ...]:
        """Random tokens, others for each request; the same for all contenders."""
        generator = np.random.default_rng([self.plan.seed, size, repeat + 1, index])
        return tuple(
            generator.integers(self.model.vocab_size, size=self.plan.prompt_tokens).tolist()
        )
