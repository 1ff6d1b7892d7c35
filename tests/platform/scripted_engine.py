"""An engine client in this process, whose requests run as the test says.

It keeps the contract of `EngineClient`; the contract's tests run on it and on the real client.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Literal

from msgspec import structs
from tests.platform.scripted_journal import ScriptedJournal

from loraplex.engine.errors import (
    EngineError,
    EngineNotReached,
    EngineUnavailable,
    RequestFailed,
)
from loraplex.engine.hints_sent import HintsSent
from loraplex.engine.journal_protocol import JournalReport, JournalTotals
from loraplex.engine.protocol import (
    Explained,
    Finished,
    FinishReason,
    ModelInfo,
    SelfTest,
    Submit,
    TokenLogprob,
    Tokens,
    Usage,
    Verify,
)
from loraplex.engine.residency_protocol import (
    ColdStatus,
    Pin,
    Pins,
    ResidencyReport,
    SinceStart,
    Tier,
    TierTotals,
    Warm,
)


def explained(request_id: str) -> Explained:
    """What the scripted engine and the scripted worker say of each open request."""
    return Explained(
        request_id=request_id, state="waiting", waits_for="share", waited_ms={"share": 2.5}
    )


DIGEST = bytes(range(16))
"""What the scripted engine and the scripted worker say of each output."""

PASSED = SelfTest(
    method="reference",
    passed=True,
    detail="",
    num_tokens=24,
    num_compared=23,
    max_abs_logprob_diff=0.00001,
    tolerance=0.001,
    max_abs_change=1.5,
    changes_output=True,
    took_ms=12.5,
    versions={"torch": "2.13.0"},
)
"""What the scripted engine and the scripted worker say of each adapter, until told otherwise."""


def residency_report(query_id: int) -> ResidencyReport:
    """What the scripted engine and the scripted worker say of their memory."""
    totals = TierTotals(capacity_bytes=100, held_bytes=10, num_adapters=0)
    return ResidencyReport(
        query_id=query_id,
        device=totals,
        host=totals,
        since_start=SinceStart(),
        cold=ColdStatus(),
        last_evictions=(),
        adapters=(),
        pins_version=0,
        refused_pins=(),
        refused_floors=(),
    )


class ScriptedRun:
    """One request in the engine."""

    def __init__(self, submit: Submit) -> None:
        self.submit = submit
        self.num_tokens = [0] * submit.sampling.n
        self.open = set(range(submit.sampling.n))
        self.events: deque[Tokens | Finished | EngineError] = deque()
        self.changed = asyncio.Event()
        self.ending: Finished | None = None
        self.over = asyncio.Event()
        self.abandoned = False
        self.num_prompt_computed = len(submit.prompt)

    def put(self, event: Tokens | Finished | EngineError) -> None:
        self.events.append(event)
        self.changed.set()

    def end(self, choice: int, reason: Literal["stop", "length"], text: str = "") -> Tokens:
        """The last tokens of a choice: what was held back."""
        self.open.remove(choice)
        return Tokens(
            request_id=self.submit.request_id,
            choice=choice,
            sequence=self.num_tokens[choice],
            ids=(),
            text=text,
            finish_reason=reason,
        )

    def finish(self, reason: FinishReason, cached: int = 0) -> Finished:
        usage = Usage(
            prompt_tokens=self.num_prompt_computed,
            cached_tokens=cached,
            completion_tokens=sum(self.num_tokens),
        )
        self.ending = Finished(
            request_id=self.submit.request_id,
            reason=reason,
            usage=usage,
            queue_ms=1.5,
            waited_ms={"kv": 1.5},
            output_digest=DIGEST,
        )
        self.over.set()
        return self.ending

    def take(self) -> Tokens | Finished | EngineError:
        """Remove the next event, or all tokens of a choice that wait as one."""
        first = self.events.popleft()
        if not isinstance(first, Tokens):
            return first
        mine, others = [first], []
        while self.events and isinstance(self.events[0], Tokens):
            more = self.events.popleft()
            assert isinstance(more, Tokens)
            (mine if more.choice == first.choice else others).append(more)
        self.events.extendleft(reversed(others))
        return structs.replace(
            first,
            ids=sum((tokens.ids for tokens in mine), ()),
            text="".join(tokens.text for tokens in mine),
            logprobs=sum((tokens.logprobs for tokens in mine), ()),
            finish_reason=mine[-1].finish_reason,
        )


class ScriptedEngine:
    """Answers each request with `answer`, or waits for what the test does with it."""

    def __init__(self, model: ModelInfo | None, max_events: int = 1000) -> None:
        self.model_info = model
        self.is_connected = model is not None
        self.max_events = max_events
        self.runs: dict[str, ScriptedRun] = {}
        self.aborted: list[str] = []
        self.dropped: list[tuple[str, str]] = []
        self.pins: Pins | None = None
        self.hints: list[Warm] = []
        self._hints_sent = HintsSent(time.monotonic)
        self.report = residency_report(0)
        self.journaled = ScriptedJournal()
        self.journal_failure = ""
        self.metrics_text = "worker_steps_total 1\n"
        self.answer: Callable[[ScriptedEngine, str], None] | None = None
        self.self_test: SelfTest | EngineError | str | None = PASSED
        """What becomes of the next test: a report, the reason why there is none, or no answer."""
        self.verified: list[Verify] = []
        self._unanswered: list[asyncio.Future[SelfTest]] = []
        self._submitted: asyncio.Queue[Submit] = asyncio.Queue()

    # What the gateway uses.

    @property
    def model(self) -> ModelInfo:
        if self.model_info is None:
            raise EngineUnavailable("no worker has connected yet")
        return self.model_info

    @property
    def connected(self) -> bool:
        return self.is_connected

    async def close(self) -> None:
        self.is_connected = False

    async def wait_connected(self) -> None:
        assert self.is_connected

    async def generate(self, submit: Submit) -> AsyncGenerator[Tokens | Finished, None]:
        if not self.is_connected:
            raise EngineNotReached("no worker is connected")
        run = self.runs[submit.request_id] = ScriptedRun(submit)
        self._submitted.put_nowait(submit)
        if self.answer is not None:
            self.answer(self, submit.request_id)
        try:
            while True:
                await run.changed.wait()
                event = run.take()
                if not run.events:
                    run.changed.clear()
                if isinstance(event, EngineError):
                    raise event
                if isinstance(event, Finished):
                    self.runs.pop(submit.request_id, None)
                    yield event
                    return
                yield event
        finally:
            run.abandoned = True
            if submit.request_id in self.runs and not run.over.is_set():
                self._abort(run)

    async def why(self, request_id: str) -> Explained | None:
        run = self.runs.get(request_id)
        return None if run is None or run.ending else explained(request_id)

    async def abort(self, request_id: str) -> Finished | None:
        run = self.runs.get(request_id)
        if run is None:
            return None
        if not run.over.is_set():
            run.put(self._abort(run))
        del self.runs[request_id]
        return run.ending

    def drop(self, tenant: str, adapter: str) -> None:
        self._hints_sent.end(tenant, adapter)
        self.dropped.append((tenant, adapter))

    def pin(self, pins: Pins) -> None:
        self.pins = pins

    def warm(self, hint: Warm) -> None:
        self._hints_sent.note(hint)
        self.hints.append(hint)

    def hints_of(self, tenant: str) -> dict[str, float]:
        return self._hints_sent.of(tenant)

    async def tier(self, tenant: str, adapter: str) -> Tier | None:
        if not self.is_connected:
            return None
        asked = Pin(tenant, adapter)
        rows = (row for row in self.report.adapters if Pin(row.tenant, row.adapter) == asked)
        return next((row.tier for row in rows), "store")

    async def residency(self) -> ResidencyReport | None:
        return self.report if self.is_connected else None

    async def journal(
        self, request_ids: Sequence[str], accepted_from_s: float = 0.0
    ) -> JournalReport | None:
        if not self.is_connected:
            return None
        return self.journaled.report(0, request_ids, accepted_from_s)

    async def journal_totals(self, from_s: float, until_s: float) -> JournalTotals | None:
        return self.journaled.totals(0, from_s, until_s) if self.is_connected else None

    async def metrics(self) -> str:
        return self.metrics_text if self.is_connected else ""

    async def verify(
        self, tenant: str, adapter: str, weight: float = 1.0, *, may_use_peft: bool = True
    ) -> SelfTest:
        if not self.is_connected:
            raise EngineNotReached("no worker is connected")
        query_id = len(self.verified)
        self.verified.append(
            Verify(
                query_id=query_id,
                tenant=tenant,
                adapter=adapter,
                weight=weight,
                may_use_peft=may_use_peft,
            )
        )
        if isinstance(self.self_test, EngineError):
            raise self.self_test
        if isinstance(self.self_test, str):
            raise EngineUnavailable(self.self_test)
        if self.self_test is not None:
            return self.self_test
        self._unanswered.append(asyncio.get_running_loop().create_future())
        return await self._unanswered[-1]

    # What tests do.

    async def submitted(self) -> Submit:
        """The next request that arrives."""
        async with asyncio.timeout(60):
            return await self._submitted.get()

    def forget_submitted(self) -> None:
        """What has arrived so far, of tests that shared this engine, is of no interest."""
        while not self._submitted.empty():
            self._submitted.get_nowait()

    def emit(
        self,
        request_id: str,
        *texts: str,
        choice: int = 0,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        """One token for each text; `logprobs` come with each."""
        run = self.runs[request_id]
        for text in texts:
            if run.over.is_set() or run.abandoned:
                return
            token = Tokens(
                request_id=request_id,
                choice=choice,
                sequence=run.num_tokens[choice],
                ids=(7,),
                text=text,
                logprobs=tuple(logprobs),
            )
            run.num_tokens[choice] += 1
            run.put(token)
            if len(run.events) > self.max_events * run.submit.sampling.n:
                run.events.clear()
                run.abandoned = True
                run.put(RequestFailed("the client is slow", "slow_client"))
                self._abort(run)

    def end(self, request_id: str, choice: int, reason: Literal["stop", "length"]) -> None:
        """End one choice."""
        run = self.runs[request_id]
        run.put(run.end(choice, reason))

    def finish(
        self, request_id: str, reason: FinishReason = "stop", text: str = "", cached: int = 0
    ) -> None:
        """End the choices that have not ended, with this text, and the request."""
        run = self.runs[request_id]
        if reason != "abort":
            for choice in sorted(run.open):
                run.put(run.end(choice, reason, text))
        run.put(run.finish(reason, cached))

    def fail(self, request_id: str, code: str = "non_finite_logits") -> None:
        run = self.runs[request_id]
        run.finish("abort")
        run.put(RequestFailed("the logits are not finite", code))

    def reject(self, request_id: str, error: EngineError) -> None:
        run = self.runs.pop(request_id)
        run.over.set()
        run.put(error)

    def die(self) -> None:
        """The worker is gone, and with it all that ran."""
        self.is_connected = False
        for future in self._unanswered:
            future.set_exception(EngineUnavailable("the worker went away"))
        for run in self.runs.values():
            if not run.over.is_set():
                run.over.set()
                run.put(EngineUnavailable("the worker went away"))
        self.runs = {k: run for k, run in self.runs.items() if run.ending is not None}

    def fail_journal(self, failure: str) -> None:
        """Or let it work again: empty."""
        self.journal_failure = failure

    async def settled(self) -> None:
        """Return when readers that can read have read all that was done above."""
        for _ in range(4):
            await asyncio.sleep(0)

    def _abort(self, run: ScriptedRun) -> Finished:
        self.aborted.append(run.submit.request_id)
        return run.finish("abort")


def says(*texts: str, reason: FinishReason = "stop") -> Callable[[ScriptedEngine, str], None]:
    """An answer of these tokens."""

    def answer(engine: ScriptedEngine, request_id: str) -> None:
        engine.emit(request_id, *texts)
        engine.finish(request_id, reason)

    return answer
