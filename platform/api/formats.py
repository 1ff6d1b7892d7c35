"""Answers as bytes: whole bodies and events of a stream, by templates; only text is encoded."""

import hashlib
from typing import Any, Protocol

import msgspec

from loraplex.engine.protocol import Finished, ModelInfo
from loraplex.platform.completions import Admitted

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"

_json = msgspec.json.encode


class AnswerFormat(Protocol):
    """How one route writes the answer to one request."""

    def whole(self, text: str, ending: Finished) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def head(self) -> bytes:
        """Events before the first text."""
        ...

    def text(self, text: str) -> bytes:
        """The event of a piece of text."""
        ...

    def tail(self, ending: Finished) -> bytes:
        """Events after the last text."""
        ...


class ChatFormat:
    """`chat.completion` and its chunks."""

    def __init__(self, admitted: Admitted, created: int, fingerprint: str) -> None:
        """`created` is in seconds since the epoch."""
        self._include_usage = admitted.request.include_usage
        self._frame = _Frame("chatcmpl", "chat.completion", admitted, created, fingerprint)
        self._chunks = _Frame("chatcmpl", "chat.completion.chunk", admitted, created, fingerprint)

    def whole(self, text: str, ending: Finished) -> bytes:
        """See AnswerFormat."""
        message = b'{"role":"assistant","content":' + _json(text) + b',"refusal":null}'
        return self._frame.body(
            b'{"index":0,"message":'
            + message
            + b',"logprobs":null,"finish_reason":'
            + _json(ending.reason)
            + b"}",
            usage_of(ending),
        )

    def head(self) -> bytes:
        """See AnswerFormat."""
        return self._chunk(b'{"role":"assistant","content":""}', b"null")

    def text(self, text: str) -> bytes:
        """See AnswerFormat."""
        return self._chunk(b'{"content":' + _json(text) + b"}", b"null")

    def tail(self, ending: Finished) -> bytes:
        """See AnswerFormat."""
        last = self._chunk(b"{}", _json(ending.reason))
        return last + self._chunks.usage_event(ending, self._include_usage) + DONE

    def _chunk(self, delta: bytes, reason: bytes) -> bytes:
        return self._chunks.event(
            b'{"index":0,"delta":' + delta + b',"logprobs":null,"finish_reason":' + reason + b"}",
            self._include_usage,
        )


class TextFormat:
    """`text_completion`, whole or in pieces."""

    def __init__(self, admitted: Admitted, created: int, fingerprint: str) -> None:
        """`created` is in seconds since the epoch."""
        self._include_usage = admitted.request.include_usage
        self._frame = _Frame("cmpl", "text_completion", admitted, created, fingerprint)

    def whole(self, text: str, ending: Finished) -> bytes:
        """See AnswerFormat."""
        return self._frame.body(_text_choice(text, _json(ending.reason)), usage_of(ending))

    def head(self) -> bytes:
        """See AnswerFormat."""
        return b""

    def text(self, text: str) -> bytes:
        """See AnswerFormat."""
        return self._frame.event(_text_choice(text, b"null"), self._include_usage)

    def tail(self, ending: Finished) -> bytes:
        """See AnswerFormat."""
        last = self._frame.event(_text_choice("", _json(ending.reason)), self._include_usage)
        return last + self._frame.usage_event(ending, self._include_usage) + DONE


class _Frame:
    """What all events of one answer have in common."""

    def __init__(
        self, prefix: str, kind: str, admitted: Admitted, created: int, fingerprint: str
    ) -> None:
        shared = {
            "id": f"{prefix}-{admitted.submit.request_id.removeprefix('req_')}",
            "object": kind,
            "created": created,
            "model": admitted.target.name,
            "system_fingerprint": fingerprint,
        }
        self._start = _json(shared)[:-1] + b',"choices":['
        self._event_start = b"data: " + self._start

    def body(self, choice: bytes, usage: dict[str, Any]) -> bytes:
        return self._start + choice + b'],"usage":' + _json(usage) + b"}"

    def event(self, choice: bytes, include_usage: bool) -> bytes:
        end = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        return self._event_start + choice + end

    def usage_event(self, ending: Finished, include_usage: bool) -> bytes:
        """Only for clients that asked for it: others fail on an event without choices."""
        if not include_usage:
            return b""
        return self._event_start + b'],"usage":' + _json(usage_of(ending)) + b"}\n\n"


def usage_of(ending: Finished) -> dict[str, Any]:
    """Usage in OpenAI's form."""
    usage = ending.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def fingerprint_of(model: ModelInfo, digest: str | None) -> str:
    """Changes whenever the same seed may give another output."""
    parts = "|".join([model.name, model.dtype, model.device, digest or "base"])
    return "fp_" + hashlib.sha256(parts.encode()).hexdigest()[:12]


def _text_choice(text: str, reason: bytes) -> bytes:
    return (
        b'{"index":0,"text":' + _json(text) + b',"logprobs":null,"finish_reason":' + reason + b"}"
    )
