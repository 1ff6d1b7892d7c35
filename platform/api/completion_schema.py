"""Body of `POST /v1/completions`."""

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from loraplex.platform.api.schemas import CompletionFields
from loraplex.platform.completions import CompletionRequest
from loraplex.platform.prompts import Text, TokenIds

MAX_TOKEN_ID = 1 << 31


def _prompt(value: object) -> Text | TokenIds:
    """A text, token ids, or an array of one of these."""
    if isinstance(value, list) and value and isinstance(value[0], (str, list)):
        if len(value) > 1:
            raise PydanticCustomError(
                "unsupported_value",
                "{count} prompts in one request are not supported; send a request for each",
                {"count": len(value)},
            )
        value = value[0]
    if isinstance(value, str):
        return Text(value)
    # `type` and not `isinstance`: true is no token id.
    if isinstance(value, list) and all(type(i) is int and i < MAX_TOKEN_ID for i in value):
        return TokenIds(tuple(value))
    raise PydanticCustomError("type", "must be a string or an array of token ids")


class CompletionBody(CompletionFields):
    """A text to continue."""

    prompt: Annotated[Text | TokenIds, BeforeValidator(_prompt)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    def to_request(self) -> CompletionRequest:
        """The same in the platform's own terms. Raises InvalidRequest."""
        return CompletionRequest(
            model=self.model,
            prompt=self.prompt,
            prompt_field="prompt",
            max_tokens=self.max_tokens,
            max_tokens_field="max_tokens",
            sampling=self.options(self.logprobs),
            stream=self.stream,
            stream_usage=self.stream_usage(),
            service_tier=self.tier(),
        )
