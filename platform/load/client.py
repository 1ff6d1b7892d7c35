"""One streamed request in OpenAI's format, timed."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import httpx

from loraplex.platform.load.arrivals import Arrival
from loraplex.platform.load.errors import LoadRefused
from loraplex.platform.load.outcome import BROKEN, CANNOT_CONNECT, ERROR_EVENT, OK, Outcome
from loraplex.platform.load.prompts import make_prompt

MAX_DETAIL_CHARS = 300

Endpoint = Literal["completions", "chat"]
_PATHS = (("completions", "/v1/completions"), ("chat", "/v1/chat/completions"))


@dataclass(frozen=True, slots=True)
class Target:
    """The server and how it is asked."""

    client: httpx.AsyncClient
    """With the server's root as its base URL, and its key."""
    endpoint: Endpoint
    ignore_eos: bool
    """Whether the server is told to go on after the model's own end, so that lengths are kept."""

    @property
    def path(self) -> str:
        """Path of the endpoint."""
        return dict(_PATHS)[self.endpoint]

    def body(self, arrival: Arrival, seed: tuple[int, ...]) -> bytes:
        """The body of a request, with a prompt of the wanted length."""
        text = make_prompt(arrival.input_tokens, seed)
        prompt: dict[str, Any] = (
            {"prompt": text}
            if self.endpoint == "completions"
            else {"messages": [{"role": "user", "content": text}]}
        )
        body = prompt | {
            "model": arrival.model,
            "max_tokens": arrival.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(body | ({"ignore_eos": True} if self.ignore_eos else {})).encode()


async def probe(client: httpx.AsyncClient, endpoint: Endpoint, model: str) -> Target:
    """Ask for one token, to learn whether the server takes `ignore_eos`, and that it answers.

    Raises LoadRefused: it does not.
    """
    reason = ""
    for ignore_eos in (True, False):
        target = Target(client, endpoint, ignore_eos)
        body = target.body(Arrival(0.0, 1, 1, model=model), seed=(0,))
        try:
            response = await client.post(target.path, content=body)
        except httpx.HTTPError as error:
            raise LoadRefused(f"{client.base_url} does not answer: {error!r}") from error
        if response.status_code == httpx.codes.OK:
            return target
        reason = (
            f"{response.status_code} to a request of {model}: {response.text[:MAX_DETAIL_CHARS]}"
        )
        if response.status_code not in {400, 422}:
            break
    raise LoadRefused(f"{client.base_url} answered {reason}")


async def send(
    target: Target, arrival: Arrival, body: bytes, now_s: Callable[[], float]
) -> Outcome:
    """Send a request and read its stream to the end; whatever goes wrong is its outcome."""
    outcome = Outcome(arrival.model, arrival.at_s, BROKEN, sent_s=now_s())
    stream = _Stream(now_s)
    try:
        async with target.client.stream("POST", target.path, content=body) as response:
            if response.status_code == httpx.codes.OK:
                async for line in response.aiter_lines():
                    stream.take(line)
                status = stream.status
            else:
                status = str(response.status_code)
                stream.detail = (await response.aread()).decode(errors="replace")
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
        status = CANNOT_CONNECT
    except (httpx.HTTPError, ValueError):
        status = BROKEN
    return replace(
        outcome,
        status=status,
        first_s=stream.first_s,
        last_s=stream.last_s,
        end_s=now_s(),
        prompt_tokens=stream.prompt_tokens,
        completion_tokens=stream.completion_tokens or stream.num_texts,
        detail=stream.detail[:MAX_DETAIL_CHARS],
    )


class _Stream:
    """Server-sent events of one answer, of which only times and counts are kept."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.status = BROKEN
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.num_texts = 0
        self.detail = ""
        self.prompt_tokens = self.completion_tokens = 0

    def take(self, line: str) -> None:
        """Take one line. Raises ValueError if it is not what the format has."""
        if not line.startswith("data:"):
            return
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            if self.status == BROKEN:
                self.status = OK
            return
        event = json.loads(data)
        if event.get("error"):
            self.status, self.detail = ERROR_EVENT, json.dumps(event["error"])
        self._count(event.get("usage") or {})
        if any(_text_of(choice) for choice in event.get("choices") or ()):
            self.last_s = self._now_s()
            self.first_s = self.first_s or self.last_s
            self.num_texts += 1

    def _count(self, usage: dict[str, Any]) -> None:
        self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
        self.completion_tokens = usage.get("completion_tokens", self.completion_tokens)


def _text_of(choice: dict[str, Any]) -> str:
    text: str = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return text
