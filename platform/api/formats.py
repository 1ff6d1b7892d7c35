"""Answers as bytes: whole bodies and events of a stream, by templates; only text is encoded."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from loraplex.engine.protocol import Finished, ModelInfo, TokenLogprob, Tokens
from loraplex.platform.api.logprob_formats import chat_logprobs, text_logprobs
from loraplex.platform.completions import Admitted

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"
_NULL = b"null"

_json = msgspec.json.encode


@dataclass(slots=True)
class Choice:
    """One whole answer to a prompt."""

    index: int
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, tokens: Tokens) -> None:
        """Append what came of it."""
        self.text += tokens.text
        self.logprobs.extend(tokens.logprobs)
        self.finish_reason = tokens.finish_reason


class AnswerFormat(Protocol):
    """How one route writes the answer to one request."""

    def whole(self, choices: Sequence[Choice], ending: Finished) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def head(self) -> bytes:
        """Events before the first text."""
        ...

    def tokens(self, tokens: Tokens) -> bytes:
        """The events of a piece of a choice; none where nothing can be told yet."""
        ...

    def tail(self, ending: Finished) -> bytes:
        """Events after the last choice has ended."""
        ...


class ChatFormat:
    """`chat.completion` and its chunks."""

    def __init__(self, admitted: Admitted, created: int, fingerprint: str) -> None:
        """`created` is in seconds since the epoch."""
        self._usage = _UsageSoFar(admitted)
        self._sampling = admitted.submit.sampling
        self._frame = _Frame("chatcmpl", "chat.completion", admitted, created, fingerprint)
        self._chunks = _Frame("chatcmpl", "chat.completion.chunk", admitted, created, fingerprint)
        self._texts = self._chunks.texts(b'"delta":{"content":', b"}", self._usage)

    def whole(self, choices: Sequence[Choice], ending: Finished) -> bytes:
        """See AnswerFormat."""
        return self._frame.body(b",".join(map(self._choice, choices)), usage_of(ending))

    def head(self) -> bytes:
        """See AnswerFormat."""
        role = b'{"role":"assistant","content":""}'
        return b"".join(self._chunk(choice, role) for choice in range(self._sampling.n))

    def tokens(self, tokens: Tokens) -> bytes:
        """See AnswerFormat."""
        self._usage.completion_tokens += len(tokens.ids)
        events = b""
        if tokens.logprobs:
            events = self._texts.event(tokens, chat_logprobs(tokens.logprobs))
        elif tokens.text:
            events = self._texts.event(tokens)
        if tokens.finish_reason is not None:
            events += self._chunk(tokens.choice, b"{}", reason=_json(tokens.finish_reason))
        return events

    def tail(self, ending: Finished) -> bytes:
        """See AnswerFormat."""
        return self._chunks.usage_event(ending, self._usage) + DONE

    def _choice(self, choice: Choice) -> bytes:
        message = b'{"role":"assistant","content":' + _json(choice.text) + b',"refusal":null}'
        asked = self._sampling.top_logprobs is not None
        return _choice(
            choice.index,
            b'"message":' + message,
            chat_logprobs(choice.logprobs) if asked else _NULL,
            _json(choice.finish_reason),
        )

    def _chunk(self, choice: int, delta: bytes, reason: bytes = _NULL) -> bytes:
        body = _choice(choice, b'"delta":' + delta, _NULL, reason)
        return self._chunks.event(body, self._usage)


class TextFormat:
    """`text_completion`, whole or in pieces."""

    def __init__(self, admitted: Admitted, created: int, fingerprint: str) -> None:
        """`created` is in seconds since the epoch."""
        self._usage = _UsageSoFar(admitted)
        self._sampling = admitted.submit.sampling
        self._frame = _Frame("cmpl", "text_completion", admitted, created, fingerprint)
        self._texts = self._frame.texts(b'"text":', b"", self._usage)

    def whole(self, choices: Sequence[Choice], ending: Finished) -> bytes:
        """See AnswerFormat."""
        return self._frame.body(b",".join(map(self._choice, choices)), usage_of(ending))

    def head(self) -> bytes:
        """See AnswerFormat."""
        return b""

    def tokens(self, tokens: Tokens) -> bytes:
        """See AnswerFormat."""
        self._usage.completion_tokens += len(tokens.ids)
        events = b""
        if tokens.logprobs:
            events = self._texts.event(tokens, text_logprobs(tokens.logprobs))
        elif tokens.text:
            events = self._texts.event(tokens)
        if tokens.finish_reason is not None:
            body = _choice(tokens.choice, b'"text":""', _NULL, _json(tokens.finish_reason))
            events += self._frame.event(body, self._usage)
        return events

    def tail(self, ending: Finished) -> bytes:
        """See AnswerFormat."""
        return self._frame.usage_event(ending, self._usage) + DONE

    def _choice(self, choice: Choice) -> bytes:
        asked = self._sampling.top_logprobs is not None
        return _choice(
            choice.index,
            b'"text":' + _json(choice.text),
            text_logprobs(choice.logprobs) if asked else _NULL,
            _json(choice.finish_reason),
        )


class _Frame:
    """What all events of one answer have in common."""

    def __init__(
        self, prefix: str, kind: str, admitted: Admitted, created: int, fingerprint: str
    ) -> None:
        shared = {
            "id": f"{prefix}-{admitted.submit.request_id.removeprefix('req_')}",
            "object": kind,
            "created": created,
            "model": admitted.request.model,
            "system_fingerprint": fingerprint,
        }
        if kind.startswith("chat"):
            shared["service_tier"] = admitted.submit.service_tier
        self._start = _json(shared)[:-1] + b',"choices":['
        self._event_start = b"data: " + self._start

    def body(self, choices: bytes, usage: dict[str, Any]) -> bytes:
        return self._start + choices + b'],"usage":' + _json(usage) + b"}"

    def event(self, choice: bytes, usage: "_UsageSoFar") -> bytes:
        return self._event_start + choice + b"]" + usage.member() + b"}\n\n"

    def texts(self, before: bytes, after: bytes, usage: "_UsageSoFar") -> "_Texts":
        """Writes events of text; `before` and `after` are what a choice has around it."""
        starts = [
            self._event_start + b'{"index":%d,' % choice + before
            for choice in range(usage.num_choices)
        ]
        return _Texts(starts, after + b',"logprobs":', usage)

    def usage_event(self, ending: Finished, usage: "_UsageSoFar") -> bytes:
        """Only for clients that asked for it: others fail on an event without choices."""
        if usage.told == "none":
            return b""
        return self._event_start + b'],"usage":' + _json(usage_of(ending)) + b"}\n\n"


class _Texts:
    """The events that carry text. An answer has thousands, so what they share is made once."""

    def __init__(self, starts: Sequence[bytes], after: bytes, usage: "_UsageSoFar") -> None:
        """`starts` has what is before the text, by choice; `after` is between it and the
        log-probabilities."""
        self._starts = starts
        self._after = after
        self._usage = usage

    def event(self, tokens: Tokens, logprobs: bytes = _NULL) -> bytes:
        return b"".join(
            (
                self._starts[tokens.choice],
                _json(tokens.text),
                self._after,
                logprobs,
                b',"finish_reason":null}]',
                self._usage.member(),
                b"}\n\n",
            )
        )


class _UsageSoFar:
    """What the events of a stream tell of usage while it goes on."""

    def __init__(self, admitted: Admitted) -> None:
        self.told = admitted.request.stream_usage
        self.completion_tokens = 0
        self.num_choices = admitted.submit.sampling.n
        self._prompt_tokens = len(admitted.submit.prompt)

    def member(self) -> bytes:
        """The member of an event that has it, with its comma."""
        if self.told != "all":
            return b"" if self.told == "none" else b',"usage":null'
        usage = {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self._prompt_tokens + self.completion_tokens,
        }
        return b',"usage":' + _json(usage)


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


def _choice(index: int, content: bytes, logprobs: bytes, reason: bytes) -> bytes:
    """An element of `choices`; `content` is its member for the text."""
    return b'{"index":%d,%b,"logprobs":%b,"finish_reason":%b}' % (index, content, logprobs, reason)
