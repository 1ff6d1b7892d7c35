"""Whatever the console writes can be written over REST, with the same permission."""

from types import MappingProxyType

from fastapi.dependencies.models import Dependant
from fastapi.routing import RouteContext, iter_route_contexts

from loraplex.platform.api.admin.admin import router as admin_router
from loraplex.platform.console.permissions import Inside, OnPlatform
from loraplex.platform.console.router import router as console_router
from loraplex.platform.permissions import Declared

OF_BROWSERS = {
    "/sign-in",
    "/sign-out",
    "/account/sessions/{session_id}/end",
    "/account/sign-out",
    "/account/password",
}
"""A person's own sessions and password: whoever has a key has neither."""

TENANT, PERSON = "/tenants/{tenant}", "/people/{person}"
KEY, PROJECT = f"{TENANT}/keys/{{key_id}}", f"{TENANT}/projects/{{project}}"
SAME = MappingProxyType(
    {
        "/people": ("POST /people",),
        "/people/{person_id}/roles": (f"POST {PERSON}/roles",),
        "/people/{person_id}/password": (f"PUT {PERSON}/password",),
        "/people/{person_id}/status": (f"PATCH {PERSON}",),
        "/people/{person_id}/sign-out": (f"POST {PERSON}/sign-out",),
        "/people/{person_id}/unlink": (f"POST {PERSON}/unlink",),
        "/tenants": ("POST /tenants",),
        "/tenants/{name}/share": (f"PATCH {TENANT}",),
        "/tenants/{name}/suspend": (f"POST {TENANT}/suspend",),
        "/tenants/{name}/resume": (f"POST {TENANT}/resume",),
        "/tenants/{name}/projects": (f"POST {TENANT}/projects",),
        "/tenants/{name}/projects/{project}/models": (f"PATCH {PROJECT}",),
        "/tenants/{name}/projects/{project}/status": (
            f"POST {PROJECT}/archive",
            f"POST {PROJECT}/restore",
        ),
        "/tenants/{name}/keys": (f"POST {TENANT}/keys",),
        "/tenants/{name}/keys/{key_id}/rotate": (f"POST {KEY}/rotate",),
        "/tenants/{name}/keys/{key_id}/revoke": (f"POST {KEY}/revoke",),
        "/tenants/{name}/keys/{key_id}/revoke-previous": (f"POST {KEY}/revoke-previous",),
        "/tenants/{name}/limits": tuple(
            f"PUT {of}/limits/{{dimension}}"
            for of in (TENANT, PROJECT, KEY, f"{TENANT}/adapters/{{name}}")
        ),
        "/tenants/{name}/limits/remove": tuple(
            f"DELETE {of}/limits/{{dimension}}"
            for of in (TENANT, PROJECT, KEY, f"{TENANT}/adapters/{{name}}")
        ),
        "/tenants/{name}/members": (
            f"POST {TENANT}/members",
            f"PATCH {TENANT}/members/{{person_id}}",
        ),
        "/tenants/{name}/members/{person_id}/remove": (f"DELETE {TENANT}/members/{{person_id}}",),
        "/tenants/{name}/adapters": (f"POST {TENANT}/adapters",),
        "/tenants/{name}/adapters/pin": (
            f"PUT {TENANT}/adapters/{{name}}/versions/{{number}}/pin",
            f"DELETE {TENANT}/adapters/{{name}}/versions/{{number}}/pin",
        ),
        "/tenants/{name}/playground/key": (f"POST {TENANT}/keys",),
    }
)


def needed(dependant: Dependant) -> set[str]:
    """The permissions that a route asks for, of either kind."""
    found = {d for below in dependant.dependencies for d in needed(below)}
    if isinstance(dependant.call, Declared):
        found.add(dependant.call.permission)
    if isinstance(dependant.call, Inside | OnPlatform):
        found.add(dependant.call.needed)
    return found


def written(routes: list[RouteContext]) -> dict[str, set[str]]:
    return {
        f"{method} {route.path}": needed(route.dependant)
        for route in routes
        for method in route.methods
        if method not in {"GET", "HEAD"}
    }


def test_whatever_the_console_writes_a_route_of_operators_writes_as_well() -> None:
    pages = written([r for r in iter_route_contexts(console_router.routes) if r.path != "/"])
    of_operators = written(list(iter_route_contexts(admin_router.routes)))
    paths = {name.removeprefix("POST /console") for name in pages}
    assert paths == OF_BROWSERS | SAME.keys()
    for path, names in SAME.items():
        for name in names:
            method, _, below = name.partition(" ")
            assert of_operators[f"{method} /admin/v1{below}"] == pages[f"POST /console{path}"], path
