"""All routes of the app, and which permission each declares."""

from collections.abc import Iterator
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts

from loraplex.platform.permissions import Declared


@dataclass(frozen=True)
class RouteEntry:
    """A route, and what it declares."""

    path: str
    methods: frozenset[str]
    declared: tuple[Declared, ...]


def route_table(app: FastAPI) -> list[RouteEntry]:
    """The routes that are ours, in the order in which they are tried."""
    entries = []
    for context in iter_route_contexts(app.routes):
        dependant = getattr(context, "dependant", None)
        if dependant is None:
            continue  # the framework's own, such as /openapi.json
        assert context.path is not None
        calls = (below.call for below in _all_below(dependant))
        found = tuple(call for call in calls if isinstance(call, Declared))
        entries.append(RouteEntry(context.path, frozenset(context.methods or ()), found))
    return entries


def _all_below(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for below in dependant.dependencies:
        yield from _all_below(below)
