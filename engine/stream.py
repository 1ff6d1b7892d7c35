"""The worker's side of the stream: gateways in, one frame per step and gateway out."""

import asyncio
import logging
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hmac import compare_digest

import msgspec

from loraplex.engine.core import StepReport
from loraplex.engine.errors import AddressInUse, EngineOverloaded, RequestRefused
from loraplex.engine.events import rejection
from loraplex.engine.frames import (
    Address,
    Security,
    UnixAddress,
    encode,
    notice_loss,
    read_frame,
)
from loraplex.engine.inspection import Inspection
from loraplex.engine.journal import Journal
from loraplex.engine.journal_protocol import JournalQuery, JournalState, JournalTotalsQuery
from loraplex.engine.mailbox import Inbox
from loraplex.engine.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Drop,
    EndVerification,
    GatewayMessage,
    Hello,
    MetricsQuery,
    MetricsText,
    Rejected,
    RejectionCode,
    StepFrame,
    Submit,
    Verified,
    Verify,
    Welcome,
    Why,
)
from loraplex.engine.residency_protocol import (
    Pins,
    ResidencyQuery,
    ResidencyReport,
    TierQuery,
    TierReport,
    Warm,
)

_log = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 5.0
MAX_HELLO_BYTES = 4096
"""What a stranger may make this process hold before it has shown the token."""
CLOSE_TIMEOUT_S = 5.0
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""A gateway that leaves more than this unread is cut off."""


class _Gateway:
    """One connected gateway and the requests that it has open here."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self.request_ids: set[str] = set()
        self.verifications: dict[int, asyncio.Task[None]] = {}

    def send(self, message: object) -> None:
        """Write one frame without waiting; a gateway that does not read is cut off."""
        if self._writer.is_closing():
            return
        self._writer.write(encode(message))
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            _log.error("a gateway left %d bytes unread and is cut off", MAX_UNSENT_BYTES)
            self._writer.transport.abort()

    def close(self) -> None:
        """Send what is written, then close."""
        self._writer.close()

    def cut(self) -> None:
        """Close at once, whatever was not sent."""
        self._writer.transport.abort()


class StreamServer:
    """Accepts gateways and carries messages between them and the engine's thread."""

    def __init__(
        self,
        inbox: Inbox,
        welcome: Welcome,
        security: Security,
        metrics: Callable[[], str],
        verify: Callable[[Verify], Awaitable[Verified]],
        journal: Journal,
    ) -> None:
        """`metrics` renders the worker's metrics as Prometheus text; `verify` tests an adapter and
        raises nothing."""
        self._inbox = inbox
        self._welcome = welcome
        self._security = security
        self._metrics = metrics
        self._verify = verify
        self._journal = journal
        journal.on_change = self._tell_journal
        self._journal_answers: set[asyncio.Task[None]] = set()
        self._verifications: set[asyncio.Task[None]] = set()
        self._gateways: set[_Gateway] = set()
        self._owners: dict[str, _Gateway] = {}
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()

    async def start(self, address: Address) -> None:
        """Listen on an address that was claimed. Raises AddressInUse."""
        if isinstance(address, UnixAddress):
            self._server = await asyncio.start_unix_server(self._serve, address.path)
            address.path.chmod(0o600)
            return
        try:
            self._server = await asyncio.start_server(
                self._serve, address.host, address.port, ssl=self._security.server_context()
            )
        except OSError as error:
            raise AddressInUse(f"cannot listen on {address}: {error.strerror}") from error

    def publish(self, report: StepReport) -> None:
        """Send a step's events to the gateways that own the requests. On the loop's thread."""
        events = report.events
        if not events:
            return
        self._journal.note(events)
        for gateway in self._gateways:
            frame = events.frame(self._welcome.epoch, report.plan.step, gateway.request_ids)
            if not _is_empty(frame):
                gateway.send(frame)
        for request_id in events.ended():
            owner = self._owners.pop(request_id, None)
            if owner is not None:
                owner.request_ids.discard(request_id)
        self._note_idle()

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the open ones; those that are still open after
        `timeout_s` are aborted, and then it returns False."""
        self._draining = True
        self._end_verifications()
        if await self._idle_within(timeout_s):
            return True
        self._inbox.put(*(Abort(request_id) for request_id in self._owners))
        await self._idle_within(CLOSE_TIMEOUT_S)
        return False

    async def _idle_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop listening and cut all gateways off."""
        if self._server is not None:
            self._server.close()
            self._end_verifications()
            for answer in self._journal_answers:
                answer.cancel()
            gateways = list(self._gateways)
            for gateway in gateways:
                gateway.close()
            if self._handlers:
                await asyncio.wait(self._handlers, timeout=CLOSE_TIMEOUT_S)
            for gateway in gateways:
                gateway.cut()  # one that does not read would never let its handler end
            await asyncio.gather(*self._handlers)
            await self._server.wait_closed()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        gateway = _Gateway(writer)
        notice_loss(writer)
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        try:
            if await self._greet(reader, gateway):
                await self._read(reader, gateway)
        except (IncompleteReadError, OSError):
            pass  # the gateway left; what it had open is aborted below
        except (ValueError, msgspec.MsgspecError) as error:
            _log.warning("a gateway sent what is not our protocol: %s", error)
        finally:
            self._forget(gateway)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _greet(self, reader: StreamReader, gateway: _Gateway) -> bool:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await read_frame(reader, msgspec.msgpack.Decoder(Hello), MAX_HELLO_BYTES)
        except TimeoutError:
            return False
        if not compare_digest(hello.token.encode(), self._security.token.encode()):
            _log.warning("a gateway was refused: its token is wrong")
            return False
        gateway.send(self._welcome)
        if hello.protocol != PROTOCOL_VERSION:
            _log.warning("a gateway was refused: it speaks protocol %d", hello.protocol)
            return False
        self._gateways.add(gateway)
        if self._journal.failure:
            gateway.send(JournalState(self._journal.failure))
        return True

    def _tell_journal(self) -> None:
        for gateway in self._gateways:
            gateway.send(JournalState(self._journal.failure))

    async def _read(self, reader: StreamReader, gateway: _Gateway) -> None:
        decoder = msgspec.msgpack.Decoder(GatewayMessage)
        while True:
            match await read_frame(reader, decoder):
                case Submit() as submit:
                    self._submit(submit, gateway)
                case Abort() | Why() as message:
                    if message.request_id in gateway.request_ids:
                        self._inbox.put(message)
                case Drop() | Pins() | Warm() as message:
                    self._inbox.put(message)
                case Verify() | EndVerification() as message:
                    self._verify_or_end(message, gateway)
                case Hello():
                    raise ValueError("a second hello")
                case query:
                    self._answer(query, gateway)

    def _answer(
        self,
        query: ResidencyQuery | TierQuery | MetricsQuery | JournalQuery | JournalTotalsQuery,
        gateway: _Gateway,
    ) -> None:
        if isinstance(query, ResidencyQuery | TierQuery):
            self._inspect(query, gateway)
        elif isinstance(query, MetricsQuery):
            gateway.send(MetricsText(query.query_id, self._metrics()))
        else:
            self._look_up(query, gateway)

    def _verify_or_end(self, message: Verify | EndVerification, gateway: _Gateway) -> None:
        if isinstance(message, Verify):
            self._begin_verification(message, gateway)
        elif message.query_id in gateway.verifications:
            gateway.verifications[message.query_id].cancel()

    def _begin_verification(self, asked: Verify, gateway: _Gateway) -> None:
        if self._draining:
            gateway.send(_shutting_down(asked))
            return
        task = asyncio.create_task(self._answer_verification(asked, gateway))
        self._verifications.add(task)
        task.add_done_callback(self._verifications.discard)
        gateway.verifications[asked.query_id] = task
        task.add_done_callback(lambda _: gateway.verifications.pop(asked.query_id))

    async def _answer_verification(self, asked: Verify, gateway: _Gateway) -> None:
        try:
            gateway.send(await self._verify(asked))
        except asyncio.CancelledError:
            gateway.send(_shutting_down(asked))
            raise

    def _end_verifications(self) -> None:
        for task in self._verifications:
            task.cancel()

    def _inspect(self, query: ResidencyQuery | TierQuery, gateway: _Gateway) -> None:
        loop = asyncio.get_running_loop()

        def reply(report: ResidencyReport | TierReport) -> None:
            loop.call_soon_threadsafe(gateway.send, report)

        self._inbox.put(Inspection(query, reply))

    def _look_up(self, query: JournalQuery | JournalTotalsQuery, gateway: _Gateway) -> None:
        task = asyncio.create_task(self._answer_from_journal(query, gateway))
        self._journal_answers.add(task)
        task.add_done_callback(self._journal_answers.discard)

    async def _answer_from_journal(
        self, query: JournalQuery | JournalTotalsQuery, gateway: _Gateway
    ) -> None:
        try:
            if isinstance(query, JournalQuery):
                gateway.send(await self._journal.report(query))
            else:
                gateway.send(await self._journal.totals(query))
        except OSError as error:
            _log.error("the journal cannot be read, so a gateway gets no answer: %s", error)

    def _submit(self, submit: Submit, gateway: _Gateway) -> None:
        if self._draining:
            self._reject(submit, gateway, "draining", "the worker is shutting down")
        elif submit.request_id in self._owners:
            self._reject(submit, gateway, "refused", f"{submit.request_id} is open already")
        else:
            self._begin(submit, gateway)

    def _begin(self, submit: Submit, gateway: _Gateway) -> None:
        try:
            self._journal.begin(submit)
        except (RequestRefused, EngineOverloaded) as error:
            self._send_rejected(rejection(submit, error), gateway)
            return
        self._owners[submit.request_id] = gateway
        gateway.request_ids.add(submit.request_id)
        self._idle.clear()
        self._inbox.put(submit)

    def _reject(self, submit: Submit, gateway: _Gateway, code: RejectionCode, message: str) -> None:
        rejected = Rejected(
            request_id=submit.request_id,
            code=code,
            message=message,
            field="request_id",
        )
        self._send_rejected(rejected, gateway)

    def _send_rejected(self, rejected: Rejected, gateway: _Gateway) -> None:
        gateway.send(StepFrame(epoch=self._welcome.epoch, step=0, rejected=(rejected,)))

    def _forget(self, gateway: _Gateway) -> None:
        """A broken stream ends all that its gateway had open."""
        self._gateways.discard(gateway)
        for verification in gateway.verifications.values():
            verification.cancel()
        for request_id in gateway.request_ids:
            self._owners.pop(request_id, None)
        self._inbox.put(*(Abort(request_id) for request_id in gateway.request_ids))
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._owners:
            self._idle.set()


def _is_empty(frame: StepFrame) -> bool:
    return not (frame.tokens or frame.finished or frame.failed or frame.rejected or frame.explained)


def _shutting_down(asked: Verify) -> Verified:
    return Verified(query_id=asked.query_id, report=None, message="the worker is shutting down")
