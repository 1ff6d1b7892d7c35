"""Times as requests write them."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError


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
