"""Signing in with an admin key, and out."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from loraplex.platform.console.access import (
    OwnForm,
    check_origin,
    cookie_name,
    read_form,
    same_origin_path,
)
from loraplex.platform.console.composition import console_of
from loraplex.platform.console.pages import render
from loraplex.platform.console.route import SIGN_IN, ConsoleRoute
from loraplex.platform.console.sessions import SESSION_S
from loraplex.platform.deps import ServicesOf
from loraplex.tenants import admin_keys
from loraplex.tenants.errors import KeyRefused

router = APIRouter(route_class=ConsoleRoute)


@router.get("/sign-in")
async def show_sign_in(
    request: Request, following: Annotated[str, Query(alias="next")] = ""
) -> Response:
    """The form, which takes an admin key."""
    return render(request, "sign_in.html", following=same_origin_path(following))


@router.post("/sign-in")
async def sign_in(request: Request, services: ServicesOf) -> Response:
    """Open a session for the owner of an admin key."""
    check_origin(request.headers)
    console = console_of(request)
    form = await read_form(request)
    following = same_origin_path(form.text("next"))
    address = request.client.host if request.client else ""
    wait_s = console.throttle.wait_s(address)
    if wait_s > 0:
        error = f"Too many keys were refused. Try again in {wait_s:.0f} s."
        return _again(request, following, error, 429)
    resources = services.resources
    try:
        async with resources.database.reader() as session:
            admin = await admin_keys.verify(
                session, form.text("key"), resources.pepper, services.now()
            )
    except KeyRefused as error:
        console.throttle.note_failure(address)
        return _again(
            request, following, f"{error} It is not a tenant's key that is asked for.", 401
        )
    console.throttle.note_success(address)
    services.admin_last_used.note(admin.key_id, services.now())
    response = RedirectResponse(following, 303)
    _set_cookie(request, response, console.sessions.open(admin.key_id, admin.label))
    return response


@router.post("/sign-out")
async def sign_out(request: Request, _form: OwnForm) -> Response:
    """End the session."""
    console_of(request).sessions.close(request.cookies.get(cookie_name(request)))
    response = RedirectResponse(SIGN_IN, 303)
    response.delete_cookie(cookie_name(request), path="/", httponly=True)
    return response


def _set_cookie(request: Request, response: Response, value: str) -> None:
    response.set_cookie(
        cookie_name(request),
        value,
        max_age=int(SESSION_S),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )


def _again(request: Request, following: str, error: str, status: int) -> Response:
    return render(request, "sign_in.html", status, following=following, errors={"key": error})
