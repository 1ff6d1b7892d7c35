"""What the completion routes share: model, caps, options of a stream."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from loraplex.engine.protocol import ServiceTier
from loraplex.platform.api.bodies import Schema
from loraplex.platform.api.fields import STREAM_NO_OP_FIELDS
from loraplex.platform.api.sampling_schema import SamplingFields
from loraplex.platform.completions import StreamUsage
from loraplex.platform.errors import InvalidRequest


class StreamOptions(Schema):
    """Options of a streamed answer."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


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

    def stream_usage(self) -> StreamUsage:
        """Which events of the stream tell usage. Raises InvalidRequest."""
        options = self.stream_options
        if options is None:
            return "none"
        if not self.stream:
            raise InvalidRequest("stream_options is for stream=true only.", "stream_options")
        if options.continuous_usage_stats and not options.include_usage:
            field = "stream_options.continuous_usage_stats"
            raise InvalidRequest(f"{field} needs include_usage=true.", field)
        if not options.include_usage:
            return "none"
        return "all" if options.continuous_usage_stats else "last"
