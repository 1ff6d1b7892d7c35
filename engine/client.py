"""The gateway's side of the stream: submit, stream, abort, reconnect. No torch."""

import asyncio
import logging
import time
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

import msgspec

from loraplex.engine.claim import claimed, held
from loraplex.engine.client_events import (
    OpenRequest,
    ending_of,
    failure_of,
    rejection_of,
)
from loraplex.engine.client_port import EngineClient
from loraplex.engine.client_queries import QUERY_TIMEOUT_S, Queries
from loraplex.engine.errors import (
    EngineError,
    EngineNotReached,
    EngineUnavailable,
    RequestFailed,
)
from loraplex.engine.frames import (
    Address,
    Security,
    UnixAddress,
    encode,
    notice_loss,
    parse_address,
    read_frame,
)
from loraplex.engine.hints_sent import HintsSent
from loraplex.engine.journal_protocol import JournalReport, JournalState, JournalTotals
from loraplex.engine.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Drop,
    Explained,
    Finished,
    Hello,
    ModelInfo,
    SelfTest,
    StepFrame,
    Submit,
    Tokens,
    Verify,
    Welcome,
    Why,
    WorkerMessage,
)
from loraplex.engine.residency_protocol import Pins, ResidencyReport, Tier, Warm

__all__ = [
    "Address",
    "EngineClient",
    "Security",
    "StreamClient",
    "claimed",
    "held",
    "parse_address",
]

_log = logging.getLogger(__name__)

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.05, 2.0
MAX_KEPT_ENDINGS = 4096


class StreamClient:
    """One worker behind a stream that is opened again whenever it breaks."""

    def __init__(self, address: Address, security: Security, max_events: int) -> None:
        """`max_events` is how many events of one choice may wait for a slow reader before its
        request is aborted; the shared stream itself never waits for a reader."""
        self._address = address
        self._security = security
        self._max_events = max_events
        self._model: ModelInfo | None = None
        self._writer: StreamWriter | None = None
        self._connected = asyncio.Event()
        self._was_connected = False
        self._open: dict[str, OpenRequest] = {}
        self._endings: OrderedDict[str, Finished] = OrderedDict()
        self._queries = Queries(self._send)
        self._pins: Pins | None = None
        """For each worker that connects."""
        self._hints = HintsSent(time.monotonic)
        self._drops: dict[Drop, None] = {}
        """What no worker has been told yet."""
        self._task: asyncio.Task[None] | None = None
        self._told = ""
        self.journal_failure = ""
        """See EngineClient."""

    def start(self) -> None:
        """Begin to connect, in the background."""
        self._task = asyncio.create_task(self._run(), name="engine-stream")

    async def close(self) -> None:
        """Close the stream; the worker aborts what is open."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def wait_connected(self) -> None:
        """Return when a worker is connected."""
        await self._connected.wait()

    @property
    def connected(self) -> bool:
        """True while a worker can take requests."""
        return self._writer is not None

    @property
    def model(self) -> ModelInfo:
        """The base model, as the last worker introduced itself. Raises EngineUnavailable."""
        if self._model is None:
            raise EngineUnavailable("no worker has connected yet; retry in a moment")
        return self._model

    async def generate(self, submit: Submit) -> AsyncGenerator[Tokens | Finished, None]:
        """See EngineClient."""
        if self._writer is None:
            raise EngineNotReached("no worker is connected; retry in a moment")
        max_events = self._max_events * submit.sampling.n
        request = self._open[submit.request_id] = OpenRequest(max_events)
        self._send(submit)
        try:
            while True:
                for event in await request.take():
                    if isinstance(event, Tokens):
                        yield event
                    elif isinstance(event, Finished):
                        self._endings.pop(submit.request_id, None)
                        yield event
                        return
                    else:
                        raise event
        finally:
            if submit.request_id in self._open:
                request.abandoned = True
                self._send(Abort(submit.request_id))

    async def abort(self, request_id: str) -> Finished | None:
        """See EngineClient."""
        if request_id in self._endings:
            return self._endings.pop(request_id)
        request = self._open.get(request_id)
        if request is None:
            return None
        self._send(Abort(request_id))
        # The answer comes with the step in progress, however long that takes, or the stream ends.
        ending = await asyncio.shield(request.ended)
        self._endings.pop(request_id, None)
        return ending

    async def why(self, request_id: str) -> Explained | None:
        """See EngineClient."""
        request = self._open.get(request_id)
        if request is None:
            return None
        answer: asyncio.Future[Explained] = asyncio.get_running_loop().create_future()
        request.questions.append(answer)
        self._send(Why(request_id))
        either = asyncio.wait((answer, request.ended), return_when=asyncio.FIRST_COMPLETED)
        with suppress(TimeoutError):
            await asyncio.wait_for(either, QUERY_TIMEOUT_S)
        return answer.result() if answer.done() else None

    def drop(self, tenant: str, adapter: str) -> None:
        """See EngineClient."""
        self._hints.end(tenant, adapter)
        drop = Drop(tenant, adapter)
        if self._writer is None:
            self._drops[drop] = None
        else:
            self._send(drop)

    def pin(self, pins: Pins) -> None:
        """See EngineClient."""
        self._pins = pins
        self._send(pins)

    def warm(self, hint: Warm) -> None:
        """See EngineClient."""
        self._hints.note(hint)
        self._send(hint)

    def hints_of(self, tenant: str) -> dict[str, float]:
        """See EngineClient."""
        return self._hints.of(tenant)

    async def tier(self, tenant: str, adapter: str) -> Tier | None:
        """See EngineClient."""
        return None if self._writer is None else await self._queries.tier(tenant, adapter)

    async def metrics(self) -> str:
        """See EngineClient."""
        return await self._queries.metrics()

    async def residency(self) -> ResidencyReport | None:
        """See EngineClient."""
        return await self._queries.residency()

    async def journal(
        self, request_ids: Sequence[str], accepted_from_s: float = 0.0
    ) -> JournalReport | None:
        """See EngineClient."""
        if self._writer is None:
            return None
        return await self._queries.journal(request_ids, accepted_from_s)

    async def journal_totals(self, from_s: float, until_s: float) -> JournalTotals | None:
        """See EngineClient."""
        if self._writer is None:
            return None
        return await self._queries.journal_totals(from_s, until_s)

    async def verify(
        self, tenant: str, adapter: str, weight: float = 1.0, *, may_use_peft: bool = True
    ) -> SelfTest:
        """See EngineClient."""
        if self._writer is None:
            raise EngineNotReached("no worker is connected; retry in a moment")

        asked = Verify(
            query_id=0,
            tenant=tenant,
            adapter=adapter,
            weight=weight,
            may_use_peft=may_use_peft,
        )
        return await self._queries.verify(asked)

    def _send(self, message: object) -> None:
        if self._writer is not None:
            self._writer.write(encode(message))

    async def _run(self) -> None:
        backoff_s = MIN_BACKOFF_S
        while True:
            was_let_in = await self._converse()
            backoff_s = MIN_BACKOFF_S if was_let_in else min(2 * backoff_s, MAX_BACKOFF_S)
            await asyncio.sleep(backoff_s)

    async def _converse(self) -> bool:
        """One connection from its beginning to its end, however it ends; True if it was let in."""
        writer: StreamWriter | None = None
        try:
            reader, writer = await self._connect()
            notice_loss(writer)
            writer.write(encode(Hello(PROTOCOL_VERSION, self._security.token)))
            await self._read(reader, writer)
        except IncompleteReadError:
            self._tell(
                "it went away"
                if self.connected
                else "it closed the connection; is LORAPLEX_WORKER_TOKEN the same on both sides?"
            )
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self._tell(_reason(error))
        finally:
            was_let_in = self.connected
            self._lose()
            if writer is not None:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
        return was_let_in

    def _tell(self, reason: str) -> None:
        """Log why there is no worker, once for each new reason."""
        if reason != self._told:
            # Before the first one has come nothing is wrong: it is still loading its model.
            level = logging.WARNING if self._was_connected else logging.INFO
            what = "no worker at" if self._was_connected else "waiting for the worker at"
            _log.log(level, "%s %s: %s", what, self._address, reason)
            self._told = reason

    async def _connect(self) -> tuple[StreamReader, StreamWriter]:
        if isinstance(self._address, UnixAddress):
            return await asyncio.open_unix_connection(self._address.path)
        return await asyncio.open_connection(
            self._address.host, self._address.port, ssl=self._security.client_context()
        )

    async def _read(self, reader: StreamReader, writer: StreamWriter) -> None:
        decoder = msgspec.msgpack.Decoder(WorkerMessage)
        while True:
            match await read_frame(reader, decoder):
                case Welcome() as welcome:
                    self._greet(welcome, writer)
                case StepFrame() as frame:
                    self._take(frame)
                case JournalState(failure):
                    self.journal_failure = failure
                case answer:
                    self._queries.take(answer)

    def _greet(self, welcome: Welcome, writer: StreamWriter) -> None:
        if welcome.protocol != PROTOCOL_VERSION:
            raise ValueError(
                f"the worker speaks protocol {welcome.protocol}, this gateway {PROTOCOL_VERSION}; "
                "run the same version on both sides"
            )
        self._model = welcome.model
        self._writer = writer
        self._told = ""
        self._was_connected = True
        self._connected.set()
        if self._pins is not None:
            self._send(self._pins)
        for hint in self._hints.left():
            self._send(hint)
        for drop in self._drops:
            self._send(drop)
        self._drops.clear()

    def _take(self, frame: StepFrame) -> None:
        for rejected in frame.rejected:
            self._end(rejected.request_id, rejection_of(rejected), None)
        for tokens in frame.tokens:
            self._deliver(tokens)
        for finished in frame.finished:
            self._end(finished.request_id, finished, finished)
        for failed in frame.failed:
            self._end(failed.request_id, failure_of(failed), ending_of(failed))
        for explained in frame.explained:
            self._answer(explained)

    def _answer(self, explained: Explained) -> None:
        request = self._open.get(explained.request_id)
        if request is not None:
            for question in request.questions:
                question.set_result(explained)
            request.questions.clear()

    def _deliver(self, tokens: Tokens) -> None:
        request = self._open.get(tokens.request_id)
        if request is None or request.abandoned:
            return
        request.put(tokens)
        if request.num_unread > request.max_events:
            request.abandoned = True
            request.drop_unread()
            request.put(
                RequestFailed(
                    f"the client left {request.max_events} events unread; its request was ended",
                    "slow_client",
                )
            )
            self._send(Abort(tokens.request_id))

    def _end(self, request_id: str, event: Finished | EngineError, ending: Finished | None) -> None:
        request = self._open.pop(request_id, None)
        if request is None:
            return
        request.ended.set_result(ending)
        if not request.abandoned:
            request.put(event)
        if ending is not None:
            # Kept until it is read: a reader that leaves before may ask what it has to pay.
            self._endings[request_id] = ending
            if len(self._endings) > MAX_KEPT_ENDINGS:
                self._endings.popitem(last=False)

    def _lose(self) -> None:
        """The stream broke: the worker aborts what was open; here it ends with an error."""
        self._writer = None
        self.journal_failure = ""
        self._connected.clear()
        for request_id in list(self._open):
            self._end(request_id, EngineUnavailable("the worker went away"), None)
        self._queries.lose()


def _reason(error: Exception) -> str:
    """For people: where nothing listens, the number and the text of the system tell nothing."""
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return "nothing listens there"
    return str(error) or type(error).__name__
