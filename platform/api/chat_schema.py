"""Body of `POST /v1/chat/completions`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from loraplex.platform.api.bodies import Schema, shown, without_defaults
from loraplex.platform.api.fields import UNSUPPORTED_MESSAGE_FIELDS
from loraplex.platform.api.schemas import CompletionFields
from loraplex.platform.completions import CompletionRequest
from loraplex.platform.errors import InvalidRequest
from loraplex.platform.prompts import Chat, Message


def _joined_text(content: object) -> object:
    """Text parts as one text, a part a line; other kinds of parts are refused."""
    if not isinstance(content, list):
        return content
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        if kind != "text":
            raise PydanticCustomError(
                "unsupported_value",
                "part {index} is of type {kind}; only 'text' is supported",
                {"index": index, "kind": shown(kind)},
            )
        if not isinstance(text, str):
            raise PydanticCustomError("part", "part {index} has no text", {"index": index})
        texts.append(text)
    return "\n".join(texts)


class ChatMessage(Schema):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined_text)]


def _messages(value: object) -> object:
    """Drop what messages may hold without effect, null above all."""
    if not isinstance(value, list):
        return value
    return [_message(message, index) for index, message in enumerate(value)]


def _message(message: object, index: int) -> object:
    if not isinstance(message, dict):
        return message
    fields: dict[str, Any] = {k: v for k, v in message.items() if v is not None}
    return without_defaults(fields, UNSUPPORTED_MESSAGE_FIELDS, f"messages[{index}].")


class ChatBody(CompletionFields):
    """A conversation to continue."""

    messages: Annotated[list[ChatMessage], Field(min_length=1), BeforeValidator(_messages)]
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
            include_usage=self.include_usage(),
            service_tier=self.tier(),
        )

    def _top_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs=true.", "top_logprobs")
        return self.top_logprobs if self.logprobs else None
