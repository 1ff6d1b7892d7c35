"""Body of `POST /v1/chat/completions`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field

from loraplex.platform.api.bodies import (
    Schema,
    shown,
    shown_name,
    unknown_parameter,
    without_defaults,
)
from loraplex.platform.api.fields import UNSUPPORTED_MESSAGE_FIELDS
from loraplex.platform.api.schemas import CompletionFields
from loraplex.platform.completions import CompletionRequest
from loraplex.platform.errors import InvalidRequest
from loraplex.platform.prompts import Chat, Message

MAX_MESSAGES = 4096
MAX_PARTS = 1024
"""Of one message."""


class ChatMessage(Schema):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str


def _messages(value: object) -> object:
    """Drop what messages may hold without effect, null above all, and join parts of a content."""
    if not isinstance(value, list):
        return value
    if len(value) > MAX_MESSAGES:
        raise _too_many("messages", len(value), MAX_MESSAGES)
    return [_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def _message(message: object, path: str) -> object:
    if not isinstance(message, dict):
        return message
    fields = without_defaults(_present(message), UNSUPPORTED_MESSAGE_FIELDS, f"{path}.")
    if isinstance(fields.get("content"), list):
        fields["content"] = _joined_text(fields["content"], f"{path}.content")
    return fields


def _joined_text(parts: list[object], path: str) -> str:
    """Text parts as one text, a part a line. Raises InvalidRequest for other kinds of parts."""
    if len(parts) > MAX_PARTS:
        raise _too_many(path, len(parts), MAX_PARTS)
    return "\n".join(_text(part, f"{path}[{index}]") for index, part in enumerate(parts))


def _text(part: object, path: str) -> str:
    fields = _present(part) if isinstance(part, dict) else {}
    kind, text = fields.get("type"), fields.get("text")
    if kind != "text":
        raise InvalidRequest(
            f"{path} is of type {shown(kind)}; only 'text' is supported.",
            path,
            "unsupported_value",
        )
    if not isinstance(text, str):
        raise InvalidRequest(f"{path}.text must be a text.", f"{path}.text")
    unknown = next((name for name in fields if name not in ("type", "text")), None)
    if unknown is not None:
        raise unknown_parameter(f"{path}.{shown_name(unknown)}")
    return text


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if v is not None}


def _too_many(path: str, count: int, limit: int) -> InvalidRequest:
    return InvalidRequest(f"{path} has {count} entries; at most {limit} are possible.", path)


class ChatBody(CompletionFields):
    """A conversation to continue."""

    messages: Annotated[
        list[ChatMessage], FailFast(), Field(min_length=1), BeforeValidator(_messages)
    ]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0

    def to_request(self) -> CompletionRequest:
        """The same in the platform's own terms. Raises InvalidRequest."""
        newer = self.max_completion_tokens
        return CompletionRequest(
            model=self.model,
            prompt=Chat(tuple(Message(m.role, m.content) for m in self.messages)),
            prompt_field="messages",
            max_tokens=self.max_tokens if newer is None else newer,
            max_tokens_field="max_tokens" if newer is None else "max_completion_tokens",
            sampling=self.options(self._top_logprobs()),
            stream=self.stream,
            stream_usage=self.stream_usage(),
            service_tier=self.tier(),
        )

    def _top_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs=true.", "top_logprobs")
        return self.top_logprobs if self.logprobs else None
