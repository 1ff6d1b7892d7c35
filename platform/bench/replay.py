"""A trace through a whole engine, in real time, and what came of it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.batch import StepBatch
from loraplex.engine.core import StepReport
from loraplex.engine.launched import Launched
from loraplex.engine.model import LoadedModel
from loraplex.engine.plan import StepOutput, StepPlan
from loraplex.engine.protocol import Failed, Rejected, Sampling, Submit
from loraplex.engine.runner import NOTHING_ARRIVES, ModelRunner
from loraplex.engine.simulation.model import END, ScriptedModel, begun
from loraplex.engine.simulation.records import Record, Run
from loraplex.engine.simulation.traces import TraceRequest
from loraplex.platform.bench.errors import BenchFailed
from loraplex.platform.worker import EngineParts

END_TOKEN = 0
"""By which outputs end, all at the length that the trace tells."""


class LengthRunner(ModelRunner):
    """Computes as any runner does, and lets outputs end where the trace says they ended."""

    def __init__(self, model: LoadedModel, num_blocks: int, block_size: int) -> None:
        super().__init__(model, num_blocks, block_size)
        self.script = ScriptedModel({})
        self._plan = StepPlan(0)

    def build(
        self,
        plan: StepPlan,
        adapters: Mapping[AdapterKey, AdapterWeights],
        arriving: Mapping[AdapterKey, LoadProgress] = NOTHING_ARRIVES,
    ) -> StepBatch:
        """See `ModelRunner`."""
        self._plan = plan
        return super().build(plan, adapters, arriving)

    def collect(self, launched: Launched | StepBatch) -> StepOutput:
        """See `ModelRunner`."""
        output = super().collect(launched)
        ends = self.script.run(self._plan).token_ids == END
        token_ids = np.where(ends, END_TOKEN, np.maximum(output.token_ids, END_TOKEN + 1))
        return replace(output, token_ids=token_ids)


class WallClock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def now(self) -> float:
        """Seconds."""
        return time.monotonic() - self._started

    def rest(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)


class ProcessorClock:
    """Seconds for which this process has computed or rested, so that what others do on the machine
    meanwhile does not count."""

    def __init__(self) -> None:
        self._started = time.process_time()
        self._rested_s = 0.0

    def now(self) -> float:
        """Seconds."""
        return time.process_time() - self._started + self._rested_s

    def rest(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)
        self._rested_s += seconds


Clock = WallClock | ProcessorClock
OnStep = Callable[[StepReport, float], None]
"""Told of each step that computed something, and of its seconds."""


class Replay:
    """Sends requests when the trace says, and steps the engine until all have ended."""

    def __init__(
        self,
        parts: EngineParts,
        requests: Sequence[TraceRequest],
        vocab_size: int,
        clock: Clock,
        on_step: OnStep = lambda _report, _seconds: None,
    ) -> None:
        """Adapters of `requests` are digests."""
        self._parts = parts
        self._requests = requests
        self._on_step = on_step
        self._clock = clock
        self._rng = np.random.default_rng(0)
        self._vocab_size = vocab_size
        self._cap = max(request.output_tokens for request in requests)
        self._records = {
            str(i): Record(r.tenant, r.adapter, r.arrival_s, r.prompt_tokens)
            for i, r in enumerate(requests)
        }
        self._num_sent = self._num_ended = 0

    def run(self) -> Run:
        """Raises BenchFailed where a request fails."""
        clock = self._clock
        run = Run(list(self._records.values()), last_arrival_s=self._requests[-1].arrival_s)
        while self._num_ended < len(self._requests):
            before = clock.now()
            self._send(before)
            report = self._parts.engine.step()
            done = clock.now()
            self._take(report, done)
            if not report.plan.num_requests:
                self._rest()
                continue
            run.num_steps += 1
            run.busy_ms += (done - before) * 1e3
            self._share(report.plan, before, (done - before) * 1e3)
            self._on_step(report, done - before)
        run.duration_s = max(record.end_s or 0.0 for record in run.records)
        return run

    def _send(self, now: float) -> None:
        while self._num_sent < len(self._requests):
            request = self._requests[self._num_sent]
            if request.arrival_s > now:
                return
            words = self._rng.integers(END_TOKEN + 1, self._vocab_size, request.prompt_tokens)
            submit = Submit(
                request_id=str(self._num_sent),
                tenant=request.tenant,
                adapter=request.adapter,
                prompt=tuple(words.tolist()),
                sampling=Sampling(max_tokens=self._cap, temperature=0.0, seed=0),
            )
            self._parts.mailbox.put(submit)
            self._num_sent += 1

    def _rest(self) -> None:
        """Nothing can be computed: wait for the next request, or a moment for a load."""
        pause_s = 0.001
        if self._num_sent == self._num_ended and self._num_sent < len(self._requests):
            pause_s = max(0.0, self._requests[self._num_sent].arrival_s - self._clock.now())
        self._clock.rest(pause_s)

    def _share(self, plan: StepPlan, at_s: float, ms: float) -> None:
        for key, cached_tokens in begun(plan):
            record = self._records[key]
            if record.started_s is None:
                record.started_s, record.cached_tokens = at_s, cached_tokens
        token_ms = ms / plan.num_tokens
        for key in plan.decodes.roster.keys:
            self._records[key].machine_ms += token_ms
        for chunk in plan.prefills:
            self._records[chunk.request_id].machine_ms += token_ms * len(chunk.token_ids)

    def _take(self, report: StepReport, at_s: float) -> None:
        events = report.events
        failures: tuple[Failed | Rejected, ...] = (*events.failed, *events.rejected)
        for failed in failures:
            raise BenchFailed(f"{failed.request_id} failed: {failed.message}")
        for tokens in events.tokens:
            record = self._records[tokens.request_id]
            record.output_tokens += len(tokens.ids)
            if record.first_token_s is None:
                record.first_token_s = at_s
        for finished in events.finished:
            self._records[finished.request_id].end_s = at_s
            self._num_ended += 1
