"""Runs the engine's own scheduler under a clock that jumps from step to step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from loraplex.adapters.residency import Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.admission import AdmissionPolicy
from loraplex.engine.config import SchedulerConfig, Targets
from loraplex.engine.cost import CostModel, Subject
from loraplex.engine.cost_features import StepFeatures
from loraplex.engine.events import Events
from loraplex.engine.lengths import OutputLengths
from loraplex.engine.plan import Logprobs, StepPlan
from loraplex.engine.protocol import Sampling, Submit
from loraplex.engine.request import Piece
from loraplex.engine.scheduler import Scheduler
from loraplex.engine.simulation.copies import NUM_LAYERS
from loraplex.engine.simulation.devices import Device
from loraplex.engine.simulation.errors import SimulationError
from loraplex.engine.simulation.model import END, ScriptedModel, begun, plan_features
from loraplex.engine.simulation.passes import Passes
from loraplex.engine.simulation.prompts import prompt_of, vocabulary
from loraplex.engine.simulation.records import Record, Run
from loraplex.engine.simulation.routes import Copying, make_link
from loraplex.engine.simulation.runtime import Runtime
from loraplex.engine.simulation.traces import TraceRequest

_PROGRESS_EVERY_STEPS = 500
_NO_TARGETS = Targets()


class _NoText:
    """Output whose text nobody reads."""

    stopped = False

    def push(self, token_id: int, logprobs: Logprobs | None) -> Piece:  # noqa: ARG002  of the protocol
        """Nothing to send."""
        return _NO_PIECE

    def end(self) -> Piece:
        """Nothing was held back."""
        return _NO_PIECE


_NO_PIECE = Piece()


@dataclass(frozen=True, slots=True)
class Load:
    """What is simulated."""

    requests: Sequence[TraceRequest]
    """Sorted by arrival."""
    max_tokens: int
    """The cap on output that every request names; the scheduler knows no more of its length."""
    noise: float = 0.0
    """Standard deviation of a step's time, relative to it."""
    seed: int = 0
    copying: Copying = field(default_factory=Copying)
    targets: Targets = _NO_TARGETS
    """When tokens should come; bounds steps."""
    kv_forecast: bool = True
    """See `SchedulerConfig`; the policies of others that know output lengths do it themselves."""


class Simulation:
    """One run of a load on a device under a policy."""

    def __init__(
        self,
        device: Device,
        load: Load,
        policy: AdmissionPolicy,
        residency: Residency,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._device = device
        self._load = load
        self._residency = residency
        self._now = 0.0
        self._link = make_link(load.copying.route, device, self._adapter_bytes, lambda: self._now)
        self._after_step = after_step
        self.costs = CostModel(Subject("simulated", device.name))
        """What the scheduler has learned about the device."""
        self._rng = np.random.default_rng(load.seed)
        self._runtime = Runtime(policy, device.steps_between_joins, self._take_shares)
        self._scheduler = Scheduler(
            _config(device, load),
            residency,
            self._runtime,
            lambda _: _NoText(),
            frozenset({END}),
            self.costs,
            OutputLengths(),
        )
        self._requests = {str(i): request for i, request in enumerate(load.requests)}
        self._records = {
            key: Record(r.tenant, r.adapter, r.arrival_s, r.prompt_tokens)
            for key, r in self._requests.items()
        }
        self._cancels = sorted(
            (r.arrival_s + r.cancelled_after_s, key)
            for key, r in self._requests.items()
            if r.cancelled_after_s is not None
        )
        self._ranks = {
            AdapterKey(r.tenant, r.adapter): r.rank for r in load.requests if r.adapter is not None
        }
        lengths = {key: request.output_tokens for key, request in self._requests.items()}
        self._model = ScriptedModel(lengths)
        self._passes = Passes(device, self._link, self._model)
        self._run = Run(list(self._records.values()), last_arrival_s=load.requests[-1].arrival_s)
        self._num_arrived = self._num_cancelled = 0

    def run(self, show: Callable[[float, float], None] = lambda _at, _until: None) -> Run:
        """Run until every request has ended; `show` is told simulated seconds and the last arrival.

        Raises SimulationError if the scheduler stands still.
        """
        now = 0.0
        while self._num_arrived < len(self._requests) or self._scheduler.has_work:
            self._deliver(now)
            started = perf_counter()
            plan = self._scheduler.plan(now)
            plan_s = perf_counter() - started
            self._start_copies(plan)
            if plan.num_requests:
                now = self._step(plan, now, plan_s)
            else:
                self._note(self._scheduler.take_events(), now)
                now = self._next_event_s(now)
            if self._run.num_steps % _PROGRESS_EVERY_STEPS == 0:
                show(now, self._run.last_arrival_s)
        self._scheduler.check()
        self._run.prefetched = self._residency.prefetched
        self._run.duration_s = max((r.end_s or 0.0) for r in self._run.records)
        return self._run

    def _deliver(self, now: float) -> None:
        """Hand over what has happened: copies, arrivals, clients that left."""
        self._now = now
        for arrival in self._link.arrivals():
            self._residency.finish_load(arrival.key)
            num_bytes = self._adapter_bytes(arrival.key)
            self._scheduler.routes.note_copy(num_bytes, num_bytes / self._device.copy_bytes_per_s)
        for key, num_layers in self._link.progress():
            self._residency.note_layers(key, num_layers, NUM_LAYERS, is_open=True)
        requests = self._load.requests
        while self._num_arrived < len(requests) and requests[self._num_arrived].arrival_s <= now:
            self._submit(str(self._num_arrived), requests[self._num_arrived])
            self._num_arrived += 1
        while self._num_cancelled < len(self._cancels):
            at, request_id = self._cancels[self._num_cancelled]
            if at > now:
                break
            self._num_cancelled += 1
            self._scheduler.abort(request_id, now)

    def _submit(self, key: str, request: TraceRequest) -> None:
        submit = Submit(
            request_id=key,
            tenant=request.tenant,
            adapter=request.adapter,
            prompt=prompt_of(int(key), request),
            sampling=Sampling(max_tokens=self._load.max_tokens, temperature=0.0, seed=0),
        )
        num_bytes = request.rank * self._device.bytes_per_rank
        self._scheduler.add(submit, request.arrival_s, num_bytes)

    def _start_copies(self, plan: StepPlan) -> None:
        self._link.start(plan)
        self._run.num_loads += len(plan.loads)
        self._run.critical_bytes += sum(map(self._adapter_bytes, (*plan.loads, *plan.claims)))

    def _adapter_bytes(self, key: AdapterKey) -> int:
        return self._ranks[key] * self._device.bytes_per_rank

    def _step(self, plan: StepPlan, now: float, plan_s: float) -> float:
        """Let the device run the plan; return when it is done."""
        step = plan_features(plan, self._ranks.__getitem__, self._link.bytes_in_flight)
        ms = self._device.times.step_ms(step) if step.num_tokens else 0.0
        if self._load.noise:
            ms *= max(0.2, 1 + self._rng.normal(0, self._load.noise))
        stall_ms = self._link.take_stall_ms()
        ms += stall_ms
        ranks = {key: float(self._requests[key].rank) for key in _passing(plan)}
        cold, passes_end_s = self._passes.run(plan, now + ms / 1e3, ranks)
        ms = (passes_end_s - now) * 1e3
        self._count(plan, step, ms, stall_ms)
        for key, cached_tokens in begun(plan):
            record = self._records[key]
            if record.started_s is None:
                record.started_s, record.cached_tokens = now, cached_tokens
        output = replace(self._model.run(plan), cold=cold)
        started = perf_counter()
        copy_ms = plan.num_copied_blocks * _copy_ms_per_block(self._device)
        events = self._scheduler.commit(plan, output, ms, copy_ms)
        self._run.planner_us.append((plan_s + perf_counter() - started) * 1e6)
        done = now + (ms + copy_ms) / 1e3
        self._note(events, done)
        self._runtime.step()
        self._after_step()
        return done

    def _take_shares(self, shares_ms: Mapping[str, float]) -> None:
        """What part of some steps' time each request had."""
        for key, share_ms in shares_ms.items():
            self._records[key].machine_ms += share_ms

    def _count(self, plan: StepPlan, step: StepFeatures, ms: float, stall_ms: float) -> None:
        run = self._run
        run.num_steps += 1
        run.num_preempted += len(plan.preempted)
        run.num_swapped += sum(preempted.is_swapped for preempted in plan.preempted)
        run.busy_ms += ms
        if step.num_decodes:
            alone = StepFeatures(
                step.num_decodes,
                step.num_decodes,
                0,
                0.0,
                0.0,
                step.kv_tokens,
                step.sum_rank,
                step.num_adapters,
            )
            times = self._device.times
            alone_ms = times.step_ms(alone)
            quiet_ms = times.step_ms(replace(step, bytes_in_flight=0))
            run.decode_ms += ms * step.num_decodes
            load_ms = stall_ms + times.step_ms(step) - quiet_ms
            run.load_stall_ms += max(0.0, load_ms) * step.num_decodes
            run.interrupted_ms += max(0.0, ms - alone_ms) * step.num_decodes

    def _note(self, events: Events, at: float) -> None:
        seen_at = at + self._device.response_ms / 1e3
        for token in events.tokens:
            record = self._records[token.request_id]
            record.output_tokens = token.sequence + 1
            if record.first_token_s is None:
                record.first_token_s = seen_at
        for end in events.finished:
            record = self._records[end.request_id]
            record.end_s = seen_at
            record.cancelled = end.reason == "abort"
        if events.failed or events.rejected:
            raise SimulationError("a request failed, which none can in a simulation")

    def _next_event_s(self, now: float) -> float:
        times = [self._link.next_arrival_s]
        if self._load.copying.mode != "wait":
            times.append(self._link.next_layer_s)
        if self._num_arrived < len(self._load.requests):
            times.append(self._load.requests[self._num_arrived].arrival_s)
        if self._num_cancelled < len(self._cancels):
            times.append(self._cancels[self._num_cancelled][0])
        if min(times) == float("inf") and self._scheduler.has_work:
            raise SimulationError(
                "the scheduler stands still: requests wait that nothing will let run"
            )
        return max(now, min(times)) if min(times) < float("inf") else now


def _passing(plan: StepPlan) -> list[str]:
    """Requests whose passes are under way."""
    return [cold.chunk.request_id for cold in plan.cold]


def _copy_ms_per_block(device: Device) -> float:
    """Time of a KV block between host and device, which steps wait for."""
    return device.block_size * device.kv_token_bytes / device.copy_bytes_per_s * 1e3


def _config(device: Device, load: Load) -> SchedulerConfig:
    longest = max(request.prompt_tokens for request in load.requests) + load.max_tokens
    if longest > device.kv_tokens:
        raise SimulationError(
            f"a request may need {longest} tokens with --max-tokens {load.max_tokens}; the KV pool "
            f"of {device.name} holds {device.kv_tokens}"
        )
    return SchedulerConfig(
        num_blocks=device.kv_tokens // device.block_size,
        block_size=device.block_size,
        max_step_tokens=device.max_step_tokens,
        max_running=device.max_running,
        max_waiting_requests=len(load.requests) + 1,
        max_waiting_tokens=sum(request.prompt_tokens for request in load.requests) + 1,
        max_model_len=longest,
        vocab_size=vocabulary(load.requests),
        prefix_cache=device.block_size > 1,
        kv_forecast=load.kv_forecast,
        targets=dict.fromkeys(("priority", "default"), load.targets),
        num_host_blocks=device.host_kv_tokens // device.block_size,
        copy_ms_per_block=_copy_ms_per_block(device),
        prefetch=load.copying.prefetch,
        route=load.copying.mode,
        num_assistants=load.copying.num_assistants,
        max_transfer_bytes=load.copying.max_transfer_bytes,
    )
