"""What the completion routes share: model, caps, options of a stream."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from loraplex.engine.protocol import ServiceTier
from loraplex.platform.api.bodies import Schema
from loraplex.platform.api.fields import STREAM_NO_OP_FIELDS
from loraplex.platform.api.sampling_schema import SamplingFields
from loraplex.platform.errors import InvalidRequest


class StreamOptions(Schema):
    """Options of a streamed answer."""

    include_usage: bool = False


def _stream_options(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {k: v for k, v in value.items() if v is not None and k not in STREAM_NO_OP_FIELDS}


_TIERS: Mapping[str, ServiceTier] = {
    "auto": "default",
    "default": "default",
    "priority": "priority",
    "flex": "flex",
}


class CompletionFields(SamplingFields):
    """Fields that both completion routes have."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool = False
    stream_options: Annotated[StreamOptions, BeforeValidator(_stream_options)] | None = None

    service_tier: Literal["auto", "default", "priority", "flex"] = "auto"

    def tier(self) -> ServiceTier:
        """The tier in the engine's words."""
        return _TIERS[self.service_tier]

    def include_usage(self) -> bool:
        """Whether the stream is to end with a chunk of usage. Raises InvalidRequest."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise InvalidRequest("stream_options is for stream=true only.", "stream_options")
        return self.stream_options.include_usage
