"""Refuses what a route would not read."""

from collections import Counter

from fastapi import Request
from fastapi.routing import APIRoute

from loraplex.platform.api.bodies import Schema, parse_exactly, shown_name, unknown_parameter
from loraplex.platform.deps import body_of
from loraplex.platform.errors import InvalidRequest

REPEATABLE = "group_by"
"""The one parameter of a query that may be there several times."""


class NothingBody(Schema):
    """The body of a route that takes none: empty, or an object without fields."""


async def refuse_unread(request: Request) -> None:
    """Refuse parameters where a route has none, repeated ones, and bodies where it reads none.

    Raises InvalidRequest. Routes that have parameters or a body check these themselves.
    """
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    parameters = request.query_params.multi_items()
    for name, value in (*request.path_params.items(), *parameters):
        if "\0" in value:  # PostgreSQL has no text with it
            raise InvalidRequest(f"{shown_name(name)}: must not hold U+0000.", shown_name(name))
    counts = Counter(name for name, _ in parameters)
    for name, count in counts.items():
        if not route.dependant.query_params:
            raise unknown_parameter(shown_name(name))
        if count > 1 and name != REPEATABLE:
            shown = shown_name(name)
            raise InvalidRequest(f"{shown} is there {count} times; send it once.", shown)
    if "requestBody" not in (route.openapi_extra or {}):
        body = await body_of(request)
        if body:
            parse_exactly(body, NothingBody)
