"""Lists that come in pages, in the shape that OpenAI's have."""

from collections.abc import Sequence
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from loraplex.platform.errors import InvalidRequest


class Query(BaseModel):
    """Base of query parameters: an unknown one is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(Query):
    """Which part of a list is asked for."""

    after: Annotated[str, Field(max_length=300)] | None = None
    """Id of the last item of the page before."""
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class View(BaseModel):
    """Base of what is shown."""

    model_config = ConfigDict(frozen=True)

    id: str


V = TypeVar("V", bound=View)


class Listing(BaseModel, Generic[V]):
    """One page of a list."""

    object: Literal["list"] = "list"
    data: list[V]
    first_id: str | None
    last_id: str | None
    has_more: bool


def listing(items: Sequence[V], page: Page) -> Listing[V]:
    """Cut the page out of the whole list. Raises InvalidRequest for a cursor that is not in it."""
    start = 0
    if page.after is not None:
        ids = [item.id for item in items]
        if page.after not in ids:
            raise InvalidRequest(f"after: the list has no {page.after[:80]!r}.", "after")
        start = ids.index(page.after) + 1
    return one_page(items[start : start + page.limit + 1], page.limit)


def one_page(items: Sequence[V], limit: int) -> Listing[V]:
    """A page of up to `limit` items; one more than that tells that the list goes on."""
    data = list(items[:limit])
    return Listing(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(items) > limit,
    )
