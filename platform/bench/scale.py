"""Throughput with many registered adapters beside that with few: what loads cost those who wait."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from loraplex.engine.protocol import Sampling, Submit
from loraplex.platform.bench.adapters import BenchAdapter, write_adapters
from loraplex.platform.bench.decode import TENANT, Ask, ask_all
from loraplex.platform.bench.errors import BenchFailed
from loraplex.platform.bench.prompts import Prompts
from loraplex.platform.bench.series import Probe, Series
from loraplex.platform.bench.subject import Subject
from loraplex.platform.worker import EngineParts

FEW = 5
_RANK = 2
"""On all linear layers: what an adapter of rank 8 on two of seven layers weighs."""
_ON_DEVICE = 32
_ON_HOST = 200
_RUNNING = 16
_LEAD_IN = 16
"""Requests that end before the clock starts, so that others are loaded beside running ones."""
_TIMED = 48
_PROMPT_TOKENS = 32
_NEW_TOKENS = (8, 24)
"""Drawn uniformly, so that requests end one after the other."""
MAX_TOKENS = _PROMPT_TOKENS + _NEW_TOKENS[1]
_PROMPT_SET, _DRAWN_SET = 1 << 21, 1 << 25


@dataclass(slots=True)
class ScaleFacts:
    """What was where."""

    num_registered: int
    adapter_bytes: int
    """Of each."""
    zipf: float = 0.0
    """Exponent of the law by which requests draw from the many; 0: they take turns."""
    on_device: int = 0
    """Adapters in the device's memory at the end, of the many; then in the host's."""
    on_host: int = 0
    num_loads: int = 0
    """While the many were measured, in all repetitions."""
    num_requests: int = 0
    """The same."""


def scale_series(num_registered: int) -> Series:
    """The series of one number of adapters."""
    return Series(
        "output_tokens_per_s", "loraplex", "registered", _RUNNING, num_registered=num_registered
    )


@dataclass(slots=True)
class Scale:
    """One engine, and the adapters of its store."""

    parts: EngineParts
    prompts: Prompts
    digests: tuple[str, ...]
    facts: ScaleFacts
    _next: int = field(default=0, init=False)

    @classmethod
    def prepare(
        cls,
        subject: Subject,
        folder: Path,
        num_registered: int,
        prompts: Prompts,
        show: Callable[[str], None],
        *,
        zipf: float = 0.0,
    ) -> "Scale":
        """Write the adapters; memory holds 32 of them, and the host's 200 more. Requests take
        turns, or draw by `zipf`: then both memories are filled first."""
        written = write_adapters(subject.model, folder, prompts.seed, num_registered, (_RANK,))
        adapters: list[BenchAdapter] = []
        for adapter in written:
            adapters.append(adapter)
            if len(adapters) % 100 == 0:
                show(f"wrote {len(adapters)} of {num_registered} adapters")
        each_bytes = max(adapter.num_bytes for adapter in adapters)
        sizes = replace(
            subject.sizes,
            adapter_bytes=_ON_DEVICE * each_bytes,
            host_adapter_bytes=_ON_HOST * each_bytes,
        )
        update = {
            "data_dir": folder,
            "max_running": _RUNNING,
            "max_waiting_tokens": (_LEAD_IN + _TIMED) * MAX_TOKENS,
            "prefetch": "queue",
        }
        settings = subject.settings.model_copy(update=update)
        engine = replace(subject, sizes=sizes, settings=settings).new_engine()
        digests = tuple(adapter.digest for adapter in adapters)
        scale = cls(engine, prompts, digests, ScaleFacts(num_registered, each_bytes, zipf))
        if zipf:
            scale._fill(show)
        return scale

    def _fill(self, show: Callable[[str], None]) -> None:
        """Ask what is most popular, that last, so that memories hold what they do after a while."""
        popular = self.digests[: _ON_DEVICE + _ON_HOST][::-1]
        for start in range(0, len(popular), _RUNNING):
            show(f"asked {start} of the {len(popular)} most popular adapters")
            asks = [Ask(digest, (1,)) for digest in popular[start : start + _RUNNING]]
            ask_all(self.parts, asks, 1)

    def probes(self, clock: Callable[[], float]) -> list[tuple[str, Probe]]:
        """The same requests on few adapters and on all, by turns."""
        return [self._probe(FEW, clock), self._probe(len(self.digests), clock)]

    def _probe(self, num_registered: int, clock: Callable[[], float]) -> tuple[str, Probe]:
        series = scale_series(num_registered)

        def probe(repeat: int) -> Mapping[Series, float]:
            num_requests = _LEAD_IN + _TIMED
            if num_registered == FEW:
                asked = list(islice(cycle(self.digests[:FEW]), num_requests))
                return {series: self._tokens_per_s(asked, repeat, clock)[0]}
            turn = self._turn(num_requests, repeat)
            rate, num_loads = self._tokens_per_s(turn, repeat, clock)
            self.facts.num_loads += num_loads
            self.facts.num_requests += num_requests
            self.facts.on_device = self.parts.residency.num_adapters
            self.facts.on_host = len(self.parts.residency.host.keys)
            return {series: rate}

        return str(series), probe

    def _turn(self, num_requests: int, repeat: int) -> list[str]:
        """Of the many, those that are asked."""
        if self.facts.zipf:
            weights = np.arange(1, len(self.digests) + 1, dtype=float) ** -self.facts.zipf
            generator = np.random.default_rng([self.prompts.seed, _DRAWN_SET, repeat])
            drawn = generator.choice(
                len(self.digests), size=num_requests, p=weights / weights.sum()
            )
            return [self.digests[index] for index in drawn.tolist()]
        first, self._next = self._next, self._next + num_requests
        return [self.digests[(first + i) % len(self.digests)] for i in range(num_requests)]

    def _tokens_per_s(
        self, digests: Sequence[str], repeat: int, clock: Callable[[], float]
    ) -> tuple[float, int]:
        """Output tokens a second from the end of the lead-in to the end of all, and all loads."""
        drawn = np.random.default_rng([self.prompts.seed, _PROMPT_SET, repeat])
        self.parts.mailbox.put(
            *(
                Submit(
                    request_id=f"request-{index}",
                    tenant=TENANT,
                    adapter=digest,
                    prompt=self.prompts.draw(_PROMPT_TOKENS, _PROMPT_SET, repeat, index),
                    sampling=Sampling(
                        max_tokens=int(drawn.integers(*_NEW_TOKENS)), temperature=0.0, seed=0
                    ),
                )
                for index, digest in enumerate(digests)
            )
        )
        num_open, num_tokens, num_loads, started = len(digests), 0, 0, 0.0
        while num_open:
            report = self.parts.engine.step()
            if report.events.failed or report.events.rejected:
                raise BenchFailed(f"a request failed: {report.events}")
            num_loads += len(report.arrivals)
            num_open -= len(report.events.finished)
            if started:
                num_tokens += sum(len(tokens.ids) for tokens in report.events.tokens)
            elif num_open <= _TIMED:
                started = clock()
            if not report.plan.num_requests and num_open:
                self.parts.mailbox.wait()
        return num_tokens / (clock() - started), num_loads
