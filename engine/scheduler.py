"""Who runs in the next step, and what follows from what ran. Pure Python; time is an argument."""

from collections.abc import Callable

from loraplex.adapters.residency import Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.admission import AdmissionPolicy, Blocked, waits_for
from loraplex.engine.border import Border
from loraplex.engine.by_adapter import ByAdapter
from loraplex.engine.cold_starts import ColdStarts
from loraplex.engine.config import SchedulerConfig, Targets
from loraplex.engine.copy_budget import CopyBudget
from loraplex.engine.costs_port import OutputLengths, StepCosts
from loraplex.engine.decode_rows import DecodeRows
from loraplex.engine.delivery import Delivery
from loraplex.engine.draft import Draft
from loraplex.engine.events import Events
from loraplex.engine.first_tokens import FirstTokens
from loraplex.engine.loads import Loads
from loraplex.engine.meter import Meter
from loraplex.engine.outlook import Outlook
from loraplex.engine.plan import StepOutput, StepPlan
from loraplex.engine.preemption import Preemption
from loraplex.engine.prefetch import Prefetch
from loraplex.engine.protocol import Explained, Submit
from loraplex.engine.refusals import refuse_ids, refuse_impossible, refuse_open, refuse_overload
from loraplex.engine.request import Request, Status, Submission, Text
from loraplex.engine.request_blocks import RequestBlocks
from loraplex.engine.route_decisions import RouteDecisions
from loraplex.engine.routes import Routes
from loraplex.engine.step_budget import Demand, StepBudget
from loraplex.engine.waits import WaitClock


class Scheduler:
    """Continuous batching with chunked prefill.

    Each step first gives every decoding request its one token, then goes on with prompts that
    have begun, also on adapters that are on their way (`cold_starts`), then admits waiting requests
    in the order of the policy; how much of prompts it computes is bounded by the deadlines
    of those that decode (`step_budget`). A request holds KV blocks for all its known tokens from
    admission on, so only decodes can run out of blocks; then the request admitted last gives up its
    own and is recomputed later, or, where the policy does not let it push out others, the one that
    needs them.

    Requests that yield (`AdmissionPolicy.yields`) come after all others in each of this, and lose
    what they hold to any other that needs it.
    Each choice of a request is scheduled by itself; they share their prompt (`shared_prompt`).

    Invariant: the pool holds one request of the longest length, and a request has got a token
    between its admission and whatever pushes it out, unless others get theirs for it; so some
    request always advances.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        residency: Residency,
        policy: AdmissionPolicy,
        new_text: Callable[[Submit], Text],
        eos_token_ids: frozenset[int],
        costs: StepCosts,
        lengths: OutputLengths,
    ) -> None:
        self._config = config
        self._residency = residency
        self._waiting = policy
        self._new_text = new_text
        self._eos_token_ids = eos_token_ids
        self.blocks = RequestBlocks(config, policy.measured)
        self._pool = self.blocks.pool
        self._requests: dict[str, Request] = {}
        self._submissions: dict[str, Submission] = {}
        self._by_adapter = ByAdapter()
        self._running: list[Request] = []
        self._yielding: list[Request] = []
        self._decoding = DecodeRows(config)
        self._delivery = Delivery(
            self._decoding, self._finish, self._fail_for_numbers, self._begin_to_decode, self.blocks
        )
        self._prefilling: dict[str, Request] = {}  # those without a row, in order of admission
        self._lengths = lengths
        self._step_budget = StepBudget(costs, config)
        self._loads = Loads(residency, config.max_transfer_bytes)
        self.prefetch = Prefetch(residency, self._loads, config.prefetch)
        self.routes = Routes(costs, config.route, config.num_assistants)
        seen = residency, self._loads, self._decoding
        decided = RouteDecisions(self.routes, *seen, config.max_step_tokens)
        self._cold = cold = ColdStarts(config, *seen, decided)
        self._copy_budget = CopyBudget(config, costs, self.routes)
        self._outlook = Outlook(config, self.blocks, residency, self._loads, costs, lengths, cold)
        self._border = Border(config, self._pool, residency, self._loads)
        self._preemption = Preemption(
            self.blocks, self._decoding, self._outlook, policy, self._give_up, self._border
        )
        self._meter = Meter(costs, policy.measured, config.max_running)
        self.first_tokens = FirstTokens(config, self._pool, policy, costs, self._outlook)
        self._clock = WaitClock(0.0)
        self._may_admit = False  # nothing happened since all that waits could not start
        self._draft = Draft(0, self._decoding)
        self._num_waiting_tokens = self._num_admissions = self._step = 0
        self._now = 0.0
        self._events = Events()

    @property
    def num_running(self) -> int:
        """Choices that hold KV blocks."""
        return len(self._running) + len(self._yielding)

    @property
    def num_waiting(self) -> int:
        """Choices that hold none."""
        return len(self._waiting)

    @property
    def num_free_blocks(self) -> int:
        """KV blocks that nobody holds, cached ones included."""
        return self._pool.num_free

    @property
    def has_work(self) -> bool:
        """True if a step could compute or report something."""
        return bool(self._requests or self._events)

    def add(self, submit: Submit, now: float, adapter_bytes: int = 0, vocab_size: int = 0) -> None:
        """Take a request that arrived at `now`, whose adapter needs `adapter_bytes` resident and
        has `vocab_size` tokens, or those of the base model (0). Raises RequestRefused if it could
        never run, EngineOverloaded if the queue is full, and DeadlineUnreachable if it has a
        deadline that cannot be met."""
        config = self._config
        refuse_open(submit, self._submissions, self._requests)
        refuse_ids(submit, vocab_size or config.vocab_size)
        refuse_impossible(submit, config, adapter_bytes, self._residency)
        refuse_overload(submit, config, len(self._waiting), self._num_waiting_tokens)
        targets = config.targets.get(submit.service_tier, Targets())
        submission = Submission.of(submit, now, adapter_bytes, self._eos_token_ids, targets)
        submission.open_choices(self._new_text, self._clock)
        self.first_tokens.refuse_late(submission, now)
        self._loads.arrive(submission)  # the last that may raise: it is here whole or not at all
        self._submissions[submit.request_id] = submission
        for request in submission.open:
            self._requests[request.key] = request
            self._by_adapter.add(request)
            self._loads.join(request, now)
            self._waiting.add(request, now)
        self._num_waiting_tokens += len(submit.prompt)
        self._may_admit = True

    def abort(self, request_id: str, now: float) -> None:
        """End a request now; unknown ids are ignored, since it may just have ended."""
        submission = self._submissions.get(request_id)
        if submission is not None:
            submission.note_waited(now)
            self._end_all(submission, now)
            self._events.add_finished(submission, "abort")

    def explain(self, request_id: str, now: float) -> Explained | None:
        """Why an open request waits, or waited until it ran; None if it is not open."""
        submission = self._submissions.get(request_id)
        return None if submission is None else submission.explain(now)

    def forget(self, key: AdapterKey) -> None:
        """Find nothing any more that was computed with an adapter."""
        self.blocks.forget_adapter(key, self._requests.values())

    def fail_adapter(self, key: AdapterKey, code: str, message: str) -> None:
        """Fail all requests on an adapter whose load failed, those that wait for it and those that
        run on what had come."""
        for request in list(self._by_adapter.of([key])):
            if request.status is not Status.FINISHED:  # with another of its choices
                self._fail(request.submission, code, message)

    def fail_step(self, plan: StepPlan, message: str) -> None:
        """Fail the requests of a step that broke and have not ended; what waits is not touched."""
        chunks = (*plan.prefills, *(cold.chunk for cold in plan.cold))
        prompts = (chunk.request_id for chunk in chunks)
        for key in (*plan.decodes.roster.keys, *prompts):
            if (request := self._requests.get(key)) is not None:
                self._fail(request.submission, "internal_error", message)
        for copy in plan.copies_out:
            if (request := self._requests.get(copy.request_id)) is not None:
                self.blocks.swapping.forget(request)  # it may not have been copied

    def plan(self, now: float) -> StepPlan:
        """Decide the next step. Mutates: who runs, KV blocks, leases. Valid until `commit`."""
        self._step, self._now = self._step + 1, now
        self.blocks.swapping.begin_step()
        self._refuse_overdue(now)
        self._draft = draft = Draft(self._config.max_step_tokens, self._decoding)
        self._outlook.begin_step(self._running, draft.computed, self._meter.step_ms)
        self._may_admit |= self._cold.look(now)
        self._may_admit |= self._loads.note_ended(self._by_adapter.of(self._loads.keys), now)
        self._plan_decodes(draft, yielding=False)
        may_start = self._may_admit and self.num_running < self._config.max_running
        if may_start or self._prefilling:
            waiting = (self._num_waiting_tokens, len(self._waiting)) if may_start else (0, 0)
            demand = Demand.of(map(self._cold.left, self._prefilling.values()), *waiting)
            self._step_budget.bound(draft, demand, self._loads.bytes_in_flight, now)
        self._plan_prefills(draft, yielding=False)
        self._admit(draft, now)
        self._plan_yielding(draft)
        self.prefetch.start(self._waiting.upcoming(), draft, now)
        self._loads.order(draft)
        self._cold.close(draft)
        in_flight = self._loads.bytes_in_flight
        draft.copy_bytes = self._copy_budget.of(draft, in_flight, self._meter.step_ms)
        return draft.plan(self._step)

    def commit(
        self, plan: StepPlan, output: StepOutput, step_ms: float = 0.0, copy_ms: float = 0.0
    ) -> Events:
        """Take what ran, in `step_ms`, after copies of KV blocks in `copy_ms`. Returns all events
        since the last commit."""
        assert plan.step == self._step, "another step has been planned since"
        now = self._now + (step_ms + copy_ms) / 1e3
        passes, waited_ms = self._cold.take(self._draft, output.cold, now)
        if step_ms > waited_ms and not self._draft.is_empty:
            self._meter.note(self._draft, self._loads.bytes_in_flight, step_ms - waited_ms)
        self.blocks.swapping.copied(plan, copy_ms)
        self._delivery.deliver(self._draft, passes, output, self._events)
        return self.take_events()

    def take_events(self) -> Events:
        """Return and forget what was not reported yet."""
        events, self._events = self._events, Events()
        return events

    def check(self) -> None:
        """Assert the conservation laws; holds between any two calls."""
        self._pool.check([request.block_table for request in self._requests.values()])
        self._residency.check()
        self._border.check()
        self.blocks.swapping.check(self._requests.values())
        self._decoding.check([request for request in self._requests.values() if request.row >= 0])
        running = {request.key for request in (*self._running, *self._yielding) if request.row < 0}
        assert running == self._prefilling.keys()
        assert self.num_running + len(self._waiting) == len(self._requests)
        waiting = [r for r in self._requests.values() if r.status is Status.WAITING]
        on_adapters = sum(r.adapter is not None for r in (*self._running, *self._yielding))
        self._loads.check(waiting, on_adapters)
        self._cold.check((*self._running, *self._yielding))
        assert self._num_waiting_tokens == sum(r.num_queued_tokens for r in waiting)
        in_submissions = [r for s in self._submissions.values() for r in s.open]
        assert {r.key for r in in_submissions} == self._requests.keys()

    def _plan_decodes(self, draft: Draft, *, yielding: bool) -> None:
        lacking = self._decoding.without_room(draft.budget, yielding=yielding)
        self._preemption.make_room(lacking, [*self._running, *self._yielding], draft)
        draft.decode(yielding=yielding)

    def _plan_prefills(self, draft: Draft, *, yielding: bool) -> None:
        for request in self._prefilling.values():
            if self._waiting.yields(request) is yielding:
                self._prefill(request, draft)

    def _prefill(self, request: Request, draft: Draft) -> None:
        if draft.budget > 0 and not self._cold.takes(request, draft):
            draft.prefill(request)

    def _plan_yielding(self, draft: Draft) -> None:
        """Go on with those that yield, once it is known what the others leave."""
        if draft.has_yielding:
            return
        draft.has_yielding = True
        if self._yielding:
            self._plan_decodes(draft, yielding=True)
            self._plan_prefills(draft, yielding=True)

    def _admit(self, draft: Draft, now: float) -> None:
        """Start waiting requests, until the policy has no more or the step no room."""
        if draft.preempted:
            self._clock.switch("kv", now)
            return  # what has just been preempted would come back at once
        if not self._may_admit or not len(self._waiting):
            return
        if len(self._running) >= self._config.max_running:
            self._clock.switch("slot", now)
            return
        refusal: Blocked | None = None
        for request in self._waiting.candidates(now, self._outlook):
            if self._waiting.yields(request):
                self._plan_yielding(draft)
                if draft.preempted:
                    break
            refusal = self._try(request, draft, now)
            if refusal is Blocked.SLOTS or refusal is Blocked.STEP:
                break
        else:
            self._may_admit = False
        reason = waits_for(refusal, is_bounded=draft.is_bounded) if len(self._waiting) else None
        self._clock.switch(reason, now)

    def _try(self, request: Request, draft: Draft, now: float) -> Blocked | None:
        """Start a request, or its load, or tell the policy why it cannot be."""
        shared = self._outlook.shared(request)
        running, yielding = self._running, self._yielding
        refusal = self._preemption.refusal(request, shared, running, yielding, draft)
        if refusal is None:
            self._waiting.admitted(request)
            self._start(request, shared, now)
            self._prefill(request, draft)
            return None
        self._waiting.blocked(request, refusal)
        if refusal is Blocked.LOADING:
            waiting = self._by_adapter.of([request.adapter])
            self._loads.demand(request, waiting, draft, now)
            if self._waiting.keeps_adapter(request):
                self._loads.keep(request)
        return refusal

    def _start(self, request: Request, shared: list[int], now: float) -> None:
        self._num_waiting_tokens -= request.num_queued_tokens
        others = self._by_adapter.of([request.adapter])
        self._cold.started(request, self._loads.start(request, others, self._draft, now))
        self._outlook.starts(request, shared)
        self.blocks.start(request, shared)
        self.blocks.swapping.copy_back(request, self._draft)
        request.status = Status.RUNNING
        self._num_admissions += 1
        request.admission = self._num_admissions
        self._prefilling[request.key] = request
        self.first_tokens.started(request, now)
        request.clock.stop(now)
        request.submission.note_waited(now)
        (self._yielding if self._waiting.yields(request) else self._running).append(request)

    def _stop(self, request: Request, status: Status) -> None:
        """Take a running choice's blocks and lease, and give back what it was charged too much."""
        self._meter.settle(request)
        if request.row >= 0:
            self.blocks.enter(request)
            self._decoding.leave(request)
        else:
            del self._prefilling[request.key]
        (self._yielding if self._waiting.yields(request) else self._running).remove(request)
        self.blocks.give_back(request)
        self._outlook.stopped(request)
        self._cold.forget(request)
        self._loads.stop(request)
        request.status = status
        self._waiting.ended(request)
        self._may_admit = True

    def _give_up(self, request: Request) -> None:
        self._stop(request, Status.WAITING)
        request.clock.follow(self._clock, self._now)
        self._loads.join(request, self._now)
        self._waiting.put_back(request)
        self._num_waiting_tokens += request.num_queued_tokens

    def _begin_to_decode(self, request: Request) -> None:
        del self._prefilling[request.key]
        yields, is_held = self._waiting.yields(request), self._cold.holds(request)
        self._decoding.join(request, yields=yields, is_held=is_held)

    def _finish(self, request: Request) -> None:
        """End one choice by itself, and its request with the last."""
        submission = request.submission
        self._lengths.observe(request.adapter, request.num_output_tokens)
        self._end(request)
        if not submission.open:
            submission.waited_ms = submission.clock.sums_ms(self._now)
            del self._submissions[submission.request_id]
            self._events.add_finished(submission, "length" if submission.was_cut else "stop")

    def _refuse_overdue(self, now: float) -> None:
        """End those that wait and would be late now even if they started at once."""
        for submission, error in self.first_tokens.overdue(now):
            self._end_all(submission, now)
            self._events.add_rejected(submission.submit, error)

    def _fail_for_numbers(self, submission: Submission, message: str) -> None:
        """What it computed was not finite, and so may be what it was computed from."""
        self._fail(submission, "not_finite", message)
        self.blocks.forget(submission.namespace, self._requests.values())

    def _fail(self, submission: Submission, code: str, message: str) -> None:
        self._end_all(submission, self._now)
        self._events.add_failed(submission, code, message)

    def _end_all(self, submission: Submission, now: float) -> None:
        submission.waited_ms = submission.clock.sums_ms(now)
        for request in list(submission.open):
            self._end(request)
        del self._submissions[submission.request_id]

    def _end(self, request: Request) -> None:
        self.blocks.swapping.forget(request)
        if request.status is Status.RUNNING:
            self._stop(request, Status.FINISHED)
        else:
            request.status = Status.FINISHED
            self._loads.leave(request)
            self._waiting.remove(request)
            self._num_waiting_tokens -= request.num_queued_tokens
            self._may_admit = True
        request.submission.open.remove(request)
        request.submission.num_ended_tokens += request.num_output_tokens
        self._by_adapter.remove(request)
        del self._requests[request.key]
