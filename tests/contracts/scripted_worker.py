"""The other end of the real client: a worker that speaks frames and does what the test says."""

import asyncio
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from tests.platform.scripted_engine import (
    DIGEST,
    PASSED,
    explained,
    residency_report,
)
from tests.platform.scripted_journal import ScriptedJournal

from loraplex.engine.client import Security, StreamClient
from loraplex.engine.errors import (
    DeadlineUnreachable,
    EngineError,
    EngineOverloaded,
    JournalUnavailable,
    RequestRefused,
)
from loraplex.engine.frames import UnixAddress, encode, read_frame
from loraplex.engine.journal_protocol import JournalQuery, JournalState, JournalTotalsQuery
from loraplex.engine.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Drop,
    Failed,
    Finished,
    FinishReason,
    GatewayMessage,
    Hello,
    MetricsQuery,
    MetricsText,
    ModelInfo,
    Rejected,
    RejectionCode,
    SelfTest,
    StepFrame,
    Submit,
    TokenLogprob,
    Tokens,
    Usage,
    Verified,
    Verify,
    Welcome,
    Why,
)
from loraplex.engine.residency_protocol import Pins, ResidencyQuery, TierQuery, TierReport, Warm


class ScriptedWorker:
    """One gateway's worker."""

    def __init__(self, path: Path, model: ModelInfo, max_events: int) -> None:
        self.client = StreamClient(UnixAddress(path), Security(), max_events)
        self.aborted: list[str] = []
        self.self_test: SelfTest | str | None = PASSED
        self.verified: list[Verify] = []
        self.dropped: list[tuple[str, str]] = []
        self.pins: Pins | None = None
        self.hints: list[Warm] = []
        self.tier_queries: list[tuple[str, str]] = []
        self.journaled = ScriptedJournal()
        self._path = path
        self._model = model
        self._server: asyncio.Server | None = None
        self._writer: StreamWriter | None = None
        self._submits: dict[str, Submit] = {}
        self._num_tokens: dict[str, list[int]] = {}
        self._choices: dict[str, set[int]] = {}
        self._submitted: asyncio.Queue[Submit] = asyncio.Queue()
        self._abort_seen = asyncio.Event()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        self.client.start()
        async with asyncio.timeout(60):
            await self.client.wait_connected()

    async def stop(self) -> None:
        await self.client.close()
        await self.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        if self._writer is not None:
            self._writer.close()
        await self._server.wait_closed()

    async def submitted(self) -> Submit:
        async with asyncio.timeout(60):
            return await self._submitted.get()

    def emit(
        self,
        request_id: str,
        *texts: str,
        choice: int = 0,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        for text in texts:
            token = self._tokens(request_id, choice, (7,), text=text, logprobs=tuple(logprobs))
            self._num_tokens[request_id][choice] += 1
            self._send(StepFrame(epoch="1", step=0, tokens=(token,)))

    def end(self, request_id: str, choice: int, reason: Literal["stop", "length"]) -> None:
        self._choices[request_id].remove(choice)
        token = self._tokens(request_id, choice, (), text="", finish_reason=reason)
        self._send(StepFrame(epoch="1", step=0, tokens=(token,)))

    def finish(
        self, request_id: str, reason: FinishReason = "stop", text: str = "", cached: int = 0
    ) -> None:
        usage = self._usage(request_id, cached)
        finished = Finished(request_id=request_id, reason=reason, usage=usage, output_digest=DIGEST)
        open_choices = () if reason == "abort" else sorted(self._choices[request_id])
        last = tuple(
            self._tokens(request_id, choice, (), text=text, finish_reason=reason)
            for choice in open_choices
        )
        del self._submits[request_id]
        self._send(StepFrame(epoch="1", step=0, tokens=last, finished=(finished,)))

    def fail(self, request_id: str, code: str = "non_finite_logits") -> None:
        failed = Failed(
            request_id=request_id,
            code=code,
            message="failed",
            usage=self._usage(request_id, 0),
            output_digest=DIGEST,
        )
        del self._submits[request_id]
        self._send(StepFrame(epoch="1", step=0, failed=(failed,)))

    def reject(self, request_id: str, error: EngineError) -> None:
        rejected = Rejected(
            request_id=request_id,
            code=_code_of(error),
            message=str(error),
            field=error.field if isinstance(error, RequestRefused) else "",
            retry_after_s=error.retry_after_s if isinstance(error, EngineOverloaded) else None,
        )
        del self._submits[request_id]
        self._send(StepFrame(epoch="1", step=0, rejected=(rejected,)))

    def die(self) -> None:
        assert self._server is not None
        assert self._writer is not None
        self._server.close()
        self._writer.close()

    def fail_journal(self, failure: str) -> None:
        self._send(JournalState(failure))

    async def settled(self) -> None:
        """Answers come in order: when this one is there, so are all before."""
        await self.client.metrics()

    def _tokens(self, request_id: str, choice: int, ids: tuple[int, ...], **fields: Any) -> Tokens:
        sequence = self._num_tokens[request_id][choice]
        return Tokens(request_id=request_id, choice=choice, sequence=sequence, ids=ids, **fields)

    def _usage(self, request_id: str, cached: int) -> Usage:
        return Usage(
            prompt_tokens=len(self._submits[request_id].prompt),
            cached_tokens=cached,
            completion_tokens=sum(self._num_tokens[request_id]),
        )

    def _send(self, message: object) -> None:
        assert self._writer is not None
        self._writer.write(encode(message))

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._writer = writer
        decoder = msgspec.msgpack.Decoder(GatewayMessage)
        with suppress(IncompleteReadError, ConnectionError):
            while True:
                self._take(await read_frame(reader, decoder))
        writer.close()

    def _take(self, message: GatewayMessage) -> None:
        match message:
            case Submit(request_id=request_id):
                self._submits[request_id] = message
                self._num_tokens[request_id] = [0] * message.sampling.n
                self._choices[request_id] = set(range(message.sampling.n))
                self._submitted.put_nowait(message)
            case Abort(request_id):
                self.aborted.append(request_id)
                if request_id in self._submits:
                    self.finish(request_id, "abort")
            case Drop(tenant, adapter):
                self.dropped.append((tenant, adapter))
            case Pins() as pins:
                self.pins = pins
            case Warm() as hint:
                self.hints.append(hint)
            case Hello():
                self._send(Welcome(protocol=PROTOCOL_VERSION, epoch="1", model=self._model))
            case _:
                self._reply(message)

    def _reply(self, message: GatewayMessage) -> None:
        match message:
            case Why(request_id):
                answer = StepFrame(epoch="e", step=0, explained=(explained(request_id),))
                self._send(answer)
            case ResidencyQuery(query_id):
                self._send(residency_report(query_id))
            case TierQuery(query_id, tenant, adapter):
                self.tier_queries.append((tenant, adapter))
                self._send(TierReport(query_id, "store"))
            case JournalQuery(query_id, request_ids, accepted_from_s):
                self._send(self.journaled.report(query_id, request_ids, accepted_from_s))
            case JournalTotalsQuery(query_id, from_s, until_s):
                self._send(self.journaled.totals(query_id, from_s, until_s))
            case MetricsQuery(query_id):
                self._send(MetricsText(query_id, "worker_steps_total 1\n"))
            case Verify(query_id=query_id):
                self.verified.append(message)
                found = self.self_test
                if isinstance(found, str):
                    self._send(Verified(query_id=query_id, report=None, message=found))
                elif found is not None:
                    self._send(Verified(query_id=query_id, report=found))


def _code_of(error: EngineError) -> RejectionCode:
    if isinstance(error, RequestRefused):
        return "refused"
    if isinstance(error, JournalUnavailable):
        return "journal_unavailable"
    return "late" if isinstance(error, DeadlineUnreachable) else "overloaded"
