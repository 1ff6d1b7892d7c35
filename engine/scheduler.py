"""Who runs in the next step, and what follows from what ran. Pure Python; time is an argument."""

from collections.abc import Callable
from dataclasses import dataclass, field

from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.admission import AdmissionPolicy
from loraplex.engine.config import SchedulerConfig
from loraplex.engine.errors import EngineOverloaded, RequestRefused
from loraplex.engine.events import Events
from loraplex.engine.kv_blocks import BlockPool
from loraplex.engine.plan import Chunk, Logprobs, StepOutput, StepPlan
from loraplex.engine.protocol import Sampling, Submit
from loraplex.engine.refusals import refuse_impossible
from loraplex.engine.request import Piece, Request, Status, Submission, Text, choice_key
from loraplex.engine.shared_prompt import shareable_blocks


@dataclass(slots=True)
class _Draft:
    """The plan of one step while it is being made."""

    budget: int
    chunks: list[Chunk] = field(default_factory=list)
    loads: list[AdapterKey] = field(default_factory=list)
    evictions: list[AdapterKey] = field(default_factory=list)
    num_preempted: int = 0
    ends: dict[str, int] = field(default_factory=dict)

    def computed(self, request: Request) -> int:
        """Tokens of a running choice that are in the KV cache after this step."""
        return self.ends.get(request.key, request.num_computed_tokens)

    def add(self, request: Request) -> None:
        """Give the request as much of the step as it can use."""
        num_tokens = min(request.num_tokens_to_compute, self.budget)
        start = request.num_computed_tokens
        completes = start + num_tokens == request.num_tokens
        self.chunks.append(
            Chunk(
                request_id=request.key,
                adapter=request.adapter,
                token_ids=tuple(request.token_ids[start : start + num_tokens]),
                start=start,
                block_table=tuple(request.block_table),
                sample=request.sample_spec() if completes else None,
            )
        )
        self.ends[request.key] = start + num_tokens
        self.budget -= num_tokens


class Scheduler:
    """Continuous batching with chunked prefill.

    Each step first gives every decoding request its one token, then goes on with prompts that
    have begun, then admits waiting requests in the order of the policy. A request holds KV blocks
    for all its known tokens from admission on, so only decodes can run out of blocks; then the
    request admitted last gives up its own and is recomputed later.

    Each choice of a request is scheduled by itself, and holds the blocks of the prompt in common
    with the others (`shared_prompt`).

    Invariant: the request admitted first is never preempted, and the pool holds one request of
    the longest length, so some request always advances.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        residency: Residency,
        policy: AdmissionPolicy,
        new_text: Callable[[Sampling], Text],
        eos_token_ids: frozenset[int],
    ) -> None:
        self._config = config
        self._residency = residency
        self._waiting = policy
        self._new_text = new_text
        self._eos_token_ids = eos_token_ids
        self._pool = BlockPool(config.num_blocks, config.block_size)
        self._requests: dict[str, Request] = {}
        self._submissions: dict[str, Submission] = {}
        self._running: list[Request] = []
        self._num_waiting_tokens = 0
        self._step = 0
        self._events = Events()

    @property
    def num_running(self) -> int:
        """Choices that hold KV blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Choices that hold none."""
        return len(self._waiting)

    @property
    def num_free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        return self._pool.num_free

    @property
    def has_work(self) -> bool:
        """True if a step could compute or report something."""
        return bool(self._requests or self._events)

    def add(self, submit: Submit, now: float, adapter_bytes: int = 0) -> None:
        """Take a request that arrived at `now`; `adapter_bytes` is what its adapter needs resident.

        Raises RequestRefused if it could never run, EngineOverloaded if the queue is full.
        """
        self._refuse_open(submit)
        refuse_impossible(submit, self._config, adapter_bytes, self._residency.capacity_bytes)
        config, num_tokens = self._config, len(submit.prompt)
        if (
            len(self._waiting) + submit.sampling.n > config.max_waiting_requests
            or self._num_waiting_tokens + num_tokens > config.max_waiting_tokens
        ):
            raise EngineOverloaded(
                f"{len(self._waiting)} requests with {self._num_waiting_tokens} prompt tokens wait "
                "already; retry later",
                retry_after_s=1.0,
            )
        sampling = submit.sampling
        eos = frozenset() if sampling.ignore_eos else self._eos_token_ids
        submission = Submission(submit, now, adapter_bytes, eos | {*sampling.stop_token_ids})
        submission.open = [
            Request(submission, choice, self._new_text(sampling)) for choice in range(sampling.n)
        ]
        self._submissions[submit.request_id] = submission
        for request in submission.open:
            self._requests[request.key] = request
            self._waiting.add(request)
        self._num_waiting_tokens += num_tokens

    def abort(self, request_id: str, now: float) -> None:
        """End a request now; unknown ids are ignored, since it may just have ended."""
        submission = self._submissions.get(request_id)
        if submission is not None:
            if submission.waited_until_s is None:
                submission.waited_until_s = now
            self._end_all(submission)
            self._events.add_finished(submission, "abort")

    def fail_adapter(self, key: AdapterKey, code: str, message: str) -> None:
        """Fail all requests that wait for an adapter whose load failed."""
        for request in list(self._requests.values()):
            if request.adapter == key and request.status is Status.WAITING:
                self._fail(request.submission, code, message)

    def fail_step(self, plan: StepPlan, message: str) -> None:
        """Fail the requests of a step that broke and have not ended; what waits is not touched."""
        for chunk in plan.chunks:
            request = self._requests.get(chunk.request_id)
            if request is not None:
                self._fail(request.submission, "internal_error", message)

    def plan(self, now: float) -> StepPlan:
        """Decide the next step. Mutates: who runs, KV blocks, leases. Valid until `commit`."""
        self._step += 1
        draft = _Draft(self._config.max_step_tokens)
        self._plan_decodes(draft)
        self._plan_prefills(draft)
        if not draft.num_preempted:
            self._admit(draft, now)
        return StepPlan(
            step=self._step,
            chunks=tuple(sorted(draft.chunks, key=_by_adapter)),
            loads=tuple(draft.loads),
            evictions=tuple(draft.evictions),
            num_preempted=draft.num_preempted,
        )

    def commit(self, plan: StepPlan, output: StepOutput) -> Events:
        """Take what ran: advance, finish, free. Returns all events since the last commit."""
        for chunk in plan.chunks:
            request = self._requests.get(chunk.request_id)
            if request is None:
                continue  # another choice of the same request failed
            request.num_computed_tokens += len(chunk.token_ids)
            request.submission.note_computed(request.num_computed_tokens)
            if request.key in output.failures:
                message = output.failures[request.key]
                self._fail(request.submission, "not_finite", message)
            elif request.key in output.tokens:
                logprobs = output.logprobs.get(request.key)
                self._append(request, output.tokens[request.key], logprobs)
        return self.take_events()

    def take_events(self) -> Events:
        """Return and forget what was not reported yet."""
        events, self._events = self._events, Events()
        return events

    def check(self) -> None:
        """Assert the conservation laws; holds between any two calls."""
        self._pool.check([request.block_table for request in self._requests.values()])
        self._residency.check()
        assert len(self._running) + len(self._waiting) == len(self._requests)
        waiting = [r for r in self._requests.values() if r.status is Status.WAITING]
        assert self._num_waiting_tokens == sum(r.num_queued_tokens for r in waiting)
        in_submissions = [r for s in self._submissions.values() for r in s.open]
        assert {r.key for r in in_submissions} == self._requests.keys()
        if not self._requests:
            assert self._residency.num_leases == 0, "a lease outlived its request"

    def _refuse_open(self, submit: Submit) -> None:
        keys = (choice_key(submit.request_id, choice) for choice in range(submit.sampling.n))
        if submit.request_id in self._submissions or any(key in self._requests for key in keys):
            raise RequestRefused(f"request {submit.request_id} is open already", "request_id")

    def _plan_decodes(self, draft: _Draft) -> None:
        for request in list(self._running):
            if request.num_tokens_to_compute != 1:
                continue
            if request.status is Status.RUNNING and self._make_room(request, draft):
                draft.add(request)

    def _make_room(self, request: Request, draft: _Draft) -> bool:
        """Extend its block table by what the next token needs; False if it was preempted itself."""
        while self._pool.missing(request.block_table, request.num_tokens) > self._pool.num_free:
            victim = self._running[-1]
            self._preempt(victim)
            draft.num_preempted += 1
            if victim is request:
                return False
        self._pool.extend(request.block_table, request.num_tokens)
        return True

    def _plan_prefills(self, draft: _Draft) -> None:
        for request in self._running:
            if request.num_tokens_to_compute > 1 and draft.budget > 0:
                draft.add(request)

    def _admit(self, draft: _Draft, now: float) -> None:
        for request in self._waiting.candidates(now):
            # A choice that shares blocks takes hold of them now, before they are gone, and computes
            # what is left when there is room.
            shared = shareable_blocks(request, self._pool.block_size, draft.computed)
            is_full = len(self._running) >= self._config.max_running
            if is_full or (draft.budget == 0 and not shared):
                break
            state = self._adapter_state(request)
            if state is State.LOADING:
                continue
            if state is State.ABSENT:
                if not self._residency.can_load(request.submission.adapter_bytes):
                    break  # those behind it must not keep the memory busy for ever
                self._start_load(request, draft)
                continue
            if self._pool.missing(shared, request.num_tokens) > self._pool.num_free:
                break
            self._start(request, shared, now)
            if draft.budget > 0:
                draft.add(request)

    def _adapter_state(self, request: Request) -> State:
        return State.RESIDENT if request.adapter is None else self._residency.state(request.adapter)

    def _start_load(self, request: Request, draft: _Draft) -> None:
        assert request.adapter is not None
        evicted = self._residency.start_load(request.adapter, request.submission.adapter_bytes)
        draft.evictions.extend(evicted)
        draft.loads.append(request.adapter)

    def _start(self, request: Request, shared: list[int], now: float) -> None:
        self._waiting.remove(request)
        self._num_waiting_tokens -= request.num_queued_tokens
        if request.adapter is not None:
            self._residency.acquire(request.adapter)
        self._pool.share(request.block_table, shared)
        request.num_computed_tokens = len(shared) * self._pool.block_size
        self._pool.extend(request.block_table, request.num_tokens)
        request.status = Status.RUNNING
        if request.submission.waited_until_s is None:
            request.submission.waited_until_s = now
        self._running.append(request)

    def _stop(self, request: Request) -> None:
        """Take a running choice's blocks and lease."""
        self._running.remove(request)
        self._pool.release(request.block_table)
        if request.adapter is not None:
            self._residency.release(request.adapter)

    def _preempt(self, request: Request) -> None:
        self._stop(request)
        request.num_computed_tokens = 0
        request.status = Status.WAITING
        self._waiting.put_back(request)
        self._num_waiting_tokens += request.num_queued_tokens

    def _append(self, request: Request, token_id: int, logprobs: Logprobs | None) -> None:
        request.token_ids.append(token_id)
        text, piece = request.text, Piece()
        ends = request.may_end and token_id in request.submission.end_token_ids
        if not ends:
            piece = text.push(token_id, logprobs)
        is_full = request.num_output_tokens >= request.submission.sampling.max_tokens
        if ends or text.stopped:
            self._events.add_token(request, token_id, piece + text.end(), "stop")
            self._finish(request)
        elif is_full:
            self._events.add_token(request, token_id, piece + text.end(), "length")
            request.submission.was_cut = True
            self._finish(request)
        else:
            self._events.add_token(request, token_id, piece, None)

    def _finish(self, request: Request) -> None:
        """End one choice by itself, and its request with the last."""
        submission = request.submission
        self._end(request)
        if not submission.open:
            del self._submissions[submission.request_id]
            self._events.add_finished(submission, "length" if submission.was_cut else "stop")

    def _fail(self, submission: Submission, code: str, message: str) -> None:
        self._end_all(submission)
        self._events.add_failed(submission, code, message)

    def _end_all(self, submission: Submission) -> None:
        for request in list(submission.open):
            self._end(request)
        del self._submissions[submission.request_id]

    def _end(self, request: Request) -> None:
        if request.status is Status.RUNNING:
            self._stop(request)
        else:
            self._waiting.remove(request)
            self._num_waiting_tokens -= request.num_queued_tokens
        request.status = Status.FINISHED
        request.submission.open.remove(request)
        request.submission.num_ended_tokens += request.num_output_tokens
        del self._requests[request.key]


def _by_adapter(chunk: Chunk) -> tuple[bool, AdapterKey]:
    """Base rows first, then each adapter's rows together."""
    return chunk.adapter is not None, chunk.adapter or AdapterKey("", "")
