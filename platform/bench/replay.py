"""A trace through a whole engine, in real time, and what came of it."""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from loraplex.engine.batch import StepBatch
from loraplex.engine.core import StepReport
from loraplex.engine.model import LoadedModel
from loraplex.engine.plan import StepOutput, StepPlan
from loraplex.engine.protocol import Failed, Rejected, Sampling, Submit
from loraplex.engine.runner import ModelRunner
from loraplex.engine.simulation.records import Record, Run
from loraplex.engine.simulation.traces import TraceRequest
from loraplex.kernels.lora_cpu import CpuLora
from loraplex.platform.bench.errors import BenchFailed
from loraplex.platform.worker import EngineParts

END_TOKEN = 0
"""By which outputs end, all at the length that the trace tells."""


class LengthRunner(ModelRunner):
    """Computes as any runner does, and lets outputs end where the trace says they ended."""

    def __init__(
        self, model: LoadedModel, num_blocks: int, block_size: int, cpu_lora: CpuLora | None
    ) -> None:
        super().__init__(model, num_blocks, block_size, cpu_lora)
        self.output_tokens: Mapping[str, int] = {}
        """Of each request, by its id."""
        self._ends: dict[str, bool] = {}

    def build(self, plan: StepPlan, adapters: Mapping) -> StepBatch:  # type: ignore[type-arg]
        """See `ModelRunner`; notes who is to end with this step."""
        self._ends = {
            chunk.request_id: chunk.sample.position + 1 >= self.output_tokens[chunk.request_id]
            for chunk in plan.chunks
            if chunk.sample is not None
        }
        return super().build(plan, adapters)

    def run(self, batch: StepBatch) -> StepOutput:
        """See `ModelRunner`."""
        output = super().run(batch)
        tokens = {
            key: END_TOKEN if self._ends[key] else max(token, END_TOKEN + 1)
            for key, token in output.tokens.items()
        }
        return StepOutput(tokens, output.failures, output.logprobs)


OnStep = Callable[[StepReport, float], None]
"""Told of each step that computed something, and of its seconds."""


class Replay:
    """Sends requests when the trace says, and steps the engine until all have ended."""

    def __init__(
        self,
        parts: EngineParts,
        requests: Sequence[TraceRequest],
        vocab_size: int,
        on_step: OnStep = lambda _report, _seconds: None,
    ) -> None:
        """Adapters of `requests` are digests."""
        self._parts = parts
        self._requests = requests
        self._on_step = on_step
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
        started = time.monotonic()
        run = Run(list(self._records.values()), last_arrival_s=self._requests[-1].arrival_s)
        while self._num_ended < len(self._requests):
            before = time.monotonic()
            self._send(before - started)
            report = self._parts.engine.step()
            done = time.monotonic()
            if not report.plan.chunks:
                self._take(report, done - started)
                self._rest(started)
                continue
            run.num_steps += 1
            run.busy_ms += (done - before) * 1e3
            self._share(report.plan, before - started, (done - before) * 1e3)
            self._take(report, done - started)
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

    def _rest(self, started: float) -> None:
        """Nothing can be computed: wait for the next request, or a moment for a load."""
        pause_s = 0.001
        if self._num_sent == self._num_ended and self._num_sent < len(self._requests):
            next_s = self._requests[self._num_sent].arrival_s - (time.monotonic() - started)
            pause_s = max(0.0, next_s)
        time.sleep(pause_s)

    def _share(self, plan: StepPlan, at_s: float, ms: float) -> None:
        for chunk in plan.chunks:
            record = self._records[chunk.request_id]
            record.machine_ms += ms * len(chunk.token_ids) / plan.num_tokens
            if record.started_s is None:
                record.started_s, record.cached_tokens = at_s, chunk.start

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
