"""What the completion routes share: sampling, stop strings, options of a stream."""

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from loraplex.platform.api.bodies import Schema
from loraplex.platform.api.fields import STREAM_NO_OP_FIELDS
from loraplex.platform.errors import InvalidRequest

MAX_STOPS = 4
MAX_STOP_CHARS = 512


class StreamOptions(Schema):
    """Options of a streamed answer."""

    include_usage: bool = False


def _stops(value: object) -> object:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise PydanticCustomError("type", "must be a string or an array of strings")
    if len(stops) > MAX_STOPS:
        raise PydanticCustomError(
            "length", "at most {limit} strings are possible", {"limit": MAX_STOPS}
        )
    if not all(1 <= len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise PydanticCustomError(
            "length", "each string needs 1 to {limit} characters", {"limit": MAX_STOP_CHARS}
        )
    return tuple(stops)


def _stream_options(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {k: v for k, v in value.items() if v is not None and k not in STREAM_NO_OP_FIELDS}


class CompletionFields(Schema):
    """Fields that both completion routes have."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(_stops)] = ()
    stream: bool = False
    stream_options: Annotated[StreamOptions, BeforeValidator(_stream_options)] | None = None

    def include_usage(self) -> bool:
        """Whether the stream is to end with a chunk of usage. Raises InvalidRequest."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise InvalidRequest("stream_options is for stream=true only.", "stream_options")
        return self.stream_options.include_usage
