"""Bodies of the admin API's requests."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from loraplex.platform.api.bodies import Schema


def _moment(value: object) -> object:
    """The time in UTC, as far as that is a year of four digits there too."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        if moment is not None and moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise PydanticCustomError(
        "datetime", "must be a time with its zone, such as 2026-11-30T08:00:00Z"
    )


Moment = Annotated[datetime, BeforeValidator(_moment)]


class LimitsBody(Schema):
    """Limits; null or absent takes the platform's default."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    ttft_deadline_ms: int | None = None
    """Of requests that name none; null refuses none for it."""


class TenantBody(Schema):
    """A new tenant."""

    name: str
    weight: float = 1.0
    limits: LimitsBody = LimitsBody()


class TenantChange(Schema):
    """What changes of a tenant; what is absent stays as it is."""

    weight: float | None = None
    limits: LimitsBody | None = None
    """Of its fields, too, only those that are there change; null takes the default again."""


class KeyBody(Schema):
    """A new API key."""

    label: str = ""
    expires_at: Moment | None = None


class NothingBody(Schema):
    """The body of a route that takes none: empty, or an object without fields."""


class PriceBody(Schema):
    """A new entry of the price book: millionths of the currency per million tokens."""

    currency: Annotated[str, Field(max_length=3)]
    prompt_micros: int
    cached_micros: int
    completion_micros: int
    valid_from: Moment | None = None
    """Default: now."""
