"""Serves one completion over HTTP: whole or streamed, with errors told in the right place."""

from asyncio import CancelledError
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from loraplex.engine.protocol import Finished, Tokens
from loraplex.platform.api.event_stream import EventStream
from loraplex.platform.api.formats import AnswerFormat, Choice, fingerprint_of
from loraplex.platform.api.guards import disconnected, guarded
from loraplex.platform.api.observing import Observation
from loraplex.platform.api.rate_headers import rate_headers, shadow_headers
from loraplex.platform.completions import Admitted, Call, complete
from loraplex.platform.error_replies import Headers, error_event, log_failure
from loraplex.platform.errors import ClientGone, ClientStalled
from loraplex.platform.log import AccessLine
from loraplex.platform.services import Services
from loraplex.tenants.errors import QuotaError

Events = AsyncGenerator[Admitted | Tokens | Finished, None]
NewFormat = Callable[[Admitted, int, str], AnswerFormat]
"""Arguments: what is answered, when it was created (s since the epoch), system fingerprint."""


MODEL_HEADER = b"x-loraplex-model"
"""What ran: a base model may have any name, an adapter's has its version."""


@dataclass(frozen=True, slots=True)
class _Client:
    """The connection to who waits for the answer."""

    receive: Receive
    send: Send
    send_body: Send
    """The server's own, for what follows a response's start."""


class Answer(Response):
    """The response to one call. It runs the call when it is sent."""

    def __init__(self, call: Call, new_format: NewFormat, services: Services) -> None:
        super().__init__()
        self._call = call
        self._new_format = new_format
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it. Errors are raised as long as nothing was sent."""
        observation = Observation(self._services.metrics, AccessLine.of(scope), monotonic)
        headers: Headers = scope["loraplex.headers"]
        try:
            async with aclosing(complete(self._call, self._services)) as events:
                admitted = await anext(events)
                assert isinstance(admitted, Admitted)
                observation.admit(admitted)
                headers += _headers(admitted)
                client = _Client(receive, send, scope["loraplex.send"])
                await self._reply(admitted, events, observation, client)
        except (ClientGone, ClientStalled) as error:
            # Nobody reads what could be sent now.
            observation.fail(error)
        except (Exception, CancelledError) as error:
            observation.fail(error)
            if isinstance(error, QuotaError):
                headers += rate_headers(error.standings)
            raise
        finally:
            observation.end()

    async def _reply(
        self,
        admitted: Admitted,
        events: Events,
        observation: Observation,
        client: _Client,
    ) -> None:
        resources = self._services.resources
        answer_format = self._new_format(
            admitted,
            int(resources.clock()),
            fingerprint_of(resources.engine.model, admitted.target.digest),
        )
        if not admitted.request.stream:
            work = _send_whole(answer_format, events, observation, client.send)
            await guarded(work, disconnected(client.receive))
            return
        keepalive_s = resources.settings.keepalive_s
        stream = EventStream(client.send, client.send_body, keepalive_s)
        work = _send_stream(answer_format, events, observation, stream)
        await guarded(work, disconnected(client.receive), stream.keep_alive())


def _headers(admitted: Admitted) -> Headers:
    """Of all answers to what was admitted, whatever comes of it."""
    hold = admitted.hold
    return [
        *rate_headers(hold.standings),
        *shadow_headers(hold.shadowed),
        (MODEL_HEADER, admitted.target.name.encode()),
    ]


async def _send_whole(
    answer_format: AnswerFormat,
    events: Events,
    observation: Observation,
    send: Send,
) -> None:
    choices: dict[int, Choice] = {}
    async for event in events:
        assert not isinstance(event, Admitted)
        observation.note(event)
        if isinstance(event, Tokens):
            choices.setdefault(event.choice, Choice(event.choice)).add(event)
    assert isinstance(event, Finished)
    body = answer_format.whole([choices[index] for index in sorted(choices)], event)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_stream(
    answer_format: AnswerFormat, events: Events, observation: Observation, stream: EventStream
) -> None:
    unsent = answer_format.head()
    try:
        async for event in events:
            assert not isinstance(event, Admitted)
            observation.note(event)
            if isinstance(event, Finished):
                await stream.end(unsent + answer_format.tail(event))
                return
            unsent += answer_format.tokens(event)
            if unsent or not stream.started:
                await stream.write(unsent)
            unsent = b""
    except Exception as error:
        if not stream.started:
            raise
        observation.fail(error)
        log_failure(error)
        await stream.end(error_event(error))
