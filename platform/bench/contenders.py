"""Who is measured in `loraplex bench engine`, and by which requests."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loraplex.engine.core import StepReport
from loraplex.engine.model import LoadedModel
from loraplex.platform.bench.adapters import BenchAdapter
from loraplex.platform.bench.agreement import Agreement
from loraplex.platform.bench.decode import Answer, Ask, ask_all
from loraplex.platform.bench.peer import Batch, Done, Peer
from loraplex.platform.bench.phases import PHASES, StopWatch
from loraplex.platform.bench.prompts import Prompts
from loraplex.platform.bench.series import Case, EnginePlan, Probe, ProfileRow, Series
from loraplex.platform.bench.subject import Subject
from loraplex.platform.worker import EngineParts

IDENTICAL = 2
"""Index of the adapter that all share in `identical`: rank 32, the nearest to the mean of all."""
PEER_CASES: tuple[Case, ...] = ("distinct", "base")
PEER_SECONDS = 60.0
"""A case of a peer that took longer, all repetitions together, is not repeated any more."""


@dataclass(frozen=True, slots=True)
class Watched:
    """An engine with stop-watches in it."""

    parts: EngineParts
    watch: StopWatch


@dataclass(slots=True)
class Contenders:
    """The engines and the peers of one run, all loaded, with the requests that they are asked."""

    plan: EnginePlan
    model: LoadedModel
    adapters: tuple[BenchAdapter, ...]
    lora_off: EngineParts
    watched: Watched | None
    subject: Subject
    peers: Sequence[Peer]
    prompts: Prompts
    lora_on: EngineParts = field(init=False)
    laps: dict[tuple[Case, int], list[dict[str, float]]] = field(default_factory=dict)
    agreement: Agreement = field(init=False)

    def __post_init__(self) -> None:
        """The engine that serves adapters keeps them; `subject` makes others that have none."""
        self.lora_on = self.subject.new_engine()
        self.agreement = Agreement(self.prompts.text)

    def probes(self) -> list[tuple[str, Probe]]:
        """All that one repetition measures, in order, by what a line of progress calls it."""
        probes: list[tuple[str, Probe]] = []
        cases: tuple[Case, ...] = ("distinct", "identical", "base", "base_lora_off")
        for size in self.plan.batch_sizes:
            probes += [self._decode_probe(case, size) for case in cases]
            probes += [
                self._peer_probe(peer, case, size) for peer in self.peers for case in PEER_CASES
            ]
            if self.watched is not None:
                probes += [self._watched_probe(self.watched, case, size) for case in PEER_CASES]
        for adapter in sorted({a.rank: a for a in self.adapters}.values(), key=lambda a: a.rank):
            probes += [self._ttft_probe(case, adapter) for case in ("warm", "cold")]
        return probes

    def warm_up(self, show: Callable[[str], None]) -> None:
        """Load every adapter, and let each contender allocate what it keeps.

        ``show`` is told what begins.
        """
        size = max(self.plan.batch_sizes)
        show("warming up: loading the adapters")
        everything = [Ask(adapter.digest, (1,)) for adapter in self.adapters]
        for first in range(0, len(everything), size):
            for parts in self._with_adapters():
                ask_all(parts, everything[first : first + size], 1)
        show(f"warming up: requests on adapters, {size}")
        ask_all(self.lora_on, self._asks("distinct", size, -1), 2)
        show(f"warming up: requests without LoRA, {size}")
        ask_all(self.lora_off, self._asks("base_lora_off", size, -1), 2)
        for peer in self.peers:
            for case in PEER_CASES:
                show(f"warming up: {peer.name}, {case}")
                batch = self._batch(case, len(self.adapters), -1)
                # One token each: prompts of many adapters take some engines minutes.
                peer.run(Batch(batch.adapters, [prompt[:1] for prompt in batch.prompts], 2))

    def close(self) -> None:
        """End the threads that load adapters."""
        for parts in (self.lora_off, *self._with_adapters()):
            parts.transfers.close()

    def profile(self, values: Mapping[Series, list[float]]) -> tuple[ProfileRow, ...]:
        """Sum up what the stop-watches saw."""
        rows = []
        for (case, size), laps in self.laps.items():
            plain = values[Series("decode_tokens_per_s", "loraplex", case, size)]
            watched = values[Series("profiled_tokens_per_s", "loraplex", case, size)]
            ratios = [fast / slow for fast, slow in zip(plain, watched, strict=True)]
            phases_ms = {name: statistics.fmean(lap[name] for lap in laps) * 1e3 for name in PHASES}
            rows.append(ProfileRow(case, size, phases_ms, statistics.median(ratios)))
        return tuple(rows)

    def _with_adapters(self) -> list[EngineParts]:
        return [self.lora_on, *([self.watched.parts] if self.watched else [])]

    def _decode_probe(self, case: Case, size: int) -> tuple[str, Probe]:
        parts = self.lora_off if case == "base_lora_off" else self.lora_on
        decode = Series("decode_tokens_per_s", "loraplex", case, size)
        prefill = Series("prefill_ms", "loraplex", case, size)

        def probe(repeat: int) -> Mapping[Series, float]:
            answer: Answer = ask_all(
                parts, self._asks(case, size, repeat), self.plan.new_tokens, clock=self.plan.clock
            )
            self.agreement.ours[case, size, repeat] = answer.token_ids
            return {decode: answer.tokens_per_s, prefill: answer.all_first_s * 1e3}

        return str(decode), probe

    def _watched_probe(self, watched: Watched, case: Case, size: int) -> tuple[str, Probe]:
        request_ids = tuple(f"request-{index}" for index in range(size))
        laps = self.laps.setdefault((case, size), [])
        series = Series("profiled_tokens_per_s", "loraplex", case, size)

        def on_step(report: StepReport, *, decodes: bool) -> None:
            lap = watched.watch.lap(report, request_ids)
            if decodes:
                laps.append(lap)

        def probe(repeat: int) -> Mapping[Series, float]:
            asks = self._asks(case, size, repeat)
            answer = ask_all(watched.parts, asks, self.plan.new_tokens, on_step, self.plan.clock)
            return {series: answer.tokens_per_s}

        return f"{series} with stop-watches", probe

    def _peer_probe(self, peer: Peer, case: Case, size: int) -> tuple[str, Probe]:
        decode = Series("decode_tokens_per_s", peer.name, case, size)
        prefill = Series("prefill_ms", peer.name, case, size)
        taken_s = 0.0

        def probe(repeat: int) -> Mapping[Series, float]:
            nonlocal taken_s
            if taken_s > PEER_SECONDS:
                return {}
            done: Done = peer.run(self._batch(case, size, repeat))
            self.agreement.theirs[peer.name, case, size, repeat] = done
            taken_s += done.first_s + done.decode_s
            return {decode: done.tokens_per_s, prefill: done.first_s * 1e3}

        return str(decode), probe

    def _ttft_probe(self, case: Case, adapter: BenchAdapter) -> tuple[str, Probe]:
        series = Series("ttft_ms", "loraplex", case, 1, adapter.rank)

        def probe(repeat: int) -> Mapping[Series, float]:
            asks = [Ask(adapter.digest, self._prompt(1, repeat, 0))]
            parts = self.lora_on if case == "warm" else self.subject.new_engine()
            try:
                return {series: ask_all(parts, asks, 1, clock=self.plan.clock).first_token_s * 1e3}
            finally:
                if case == "cold":
                    parts.transfers.close()

        return str(series), probe

    def _asks(self, case: Case, size: int, repeat: int) -> list[Ask]:
        shared = self.adapters[IDENTICAL].digest if case == "identical" else None
        return [
            Ask(
                self.adapters[index % len(self.adapters)].digest if case == "distinct" else shared,
                self._prompt(size, repeat, index),
            )
            for index in range(size)
        ]

    def _batch(self, case: Case, size: int, repeat: int) -> Batch:
        is_base = case == "base"
        return Batch(
            [None if is_base else index % len(self.adapters) for index in range(size)],
            [self._prompt(size, repeat, index) for index in range(size)],
            self.plan.new_tokens,
        )

    def _prompt(self, size: int, repeat: int, index: int) -> tuple[int, ...]:
        """Other words for each request; the same for all contenders."""
        return self.prompts.draw(self.plan.prompt_tokens, size, repeat + 1, index)
