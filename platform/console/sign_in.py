"""Signing in with a password, with an admin key, or elsewhere; and out."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from loraplex.platform.console.access import (
    Form,
    OwnForm,
    check_origin,
    cookie_name,
    drop_cookie,
    read_form,
    same_origin_path,
    set_cookie,
)
from loraplex.platform.console.composition import console_of
from loraplex.platform.console.pages import render
from loraplex.platform.console.route import SIGN_IN, ConsoleRoute
from loraplex.platform.console.throttle import TooManyAttempts, counted_by
from loraplex.platform.deps import ServicesOf, address_of
from loraplex.platform.services import Services
from loraplex.tenants import admin_keys, console_sessions, people
from loraplex.tenants.console_sessions import LONGEST, SessionOwner
from loraplex.tenants.errors import KeyRefused, SignInRefused

router = APIRouter(route_class=ConsoleRoute)


@router.get("/sign-in")
async def show_sign_in(
    request: Request, following: Annotated[str, Query(alias="next")] = ""
) -> Response:
    """All ways in."""
    return sign_in_page(request, same_origin_path(following))


@router.post("/sign-in")
async def sign_in(request: Request, services: ServicesOf) -> Response:
    """Open a session for a person, or for the owner of an admin key."""
    check_origin(request.headers)
    console = console_of(request)
    form = await read_form(request)
    following = same_origin_path(form.text("next"))
    field = "key" if form.text("key") else "password"
    email = "" if field == "key" else form.text("email").lower()[: people.MAX_EMAIL_CHARS]
    counted = counted_by(address_of(request) or "", email)
    try:
        with console.throttle.attempt(counted):
            owner = await (_by_key if field == "key" else _by_password)(services, form)
    except (TooManyAttempts, SignInRefused) as error:
        status = 429 if isinstance(error, TooManyAttempts) else 401
        return sign_in_page(request, following, {field: str(error)}, status, form.text("email"))
    return await enter(request, owner, following)


@router.post("/sign-out")
async def sign_out(request: Request, _form: OwnForm, services: ServicesOf) -> Response:
    """End the session."""
    async with services.resources.database.session() as session:
        await console_sessions.end(session, request.cookies.get(cookie_name(request), ""))
    response = RedirectResponse(SIGN_IN, 303)
    drop_cookie(request, response, "session")
    return response


async def enter(request: Request, owner: SessionOwner, following: str) -> Response:
    """Open a session, and lead to where its owner wanted to go."""
    agent = request.headers.get("user-agent", "")
    cookie = await console_of(request).open_session(owner, agent)
    response = RedirectResponse(following, 303)
    set_cookie(request, response, "session", cookie, int(LONGEST.total_seconds()))
    return response


def sign_in_page(
    request: Request,
    following: str,
    errors: dict[str, str] | None = None,
    status: int = 200,
    email: str = "",
) -> Response:
    """The page with all ways in, and what was wrong with the one that was tried."""
    return render(
        request,
        "sign_in.html",
        status,
        following=following,
        errors=errors or {},
        email=email,
        has_issuer=console_of(request).elsewhere is not None,
    )


async def _by_key(services: Services, form: Form) -> SessionOwner:
    resources = services.resources
    try:
        async with resources.database.reader() as session:
            admin = await admin_keys.verify(
                session, form.text("key"), resources.pepper, services.now()
            )
    except KeyRefused as error:
        raise SignInRefused(f"{error} It is not a tenant's key that is asked for.") from None
    services.admin_last_used.note(admin.key_id, services.now())
    return SessionOwner(admin_key_id=admin.key_id)


async def _by_password(services: Services, form: Form) -> SessionOwner:
    database = services.resources.database
    password = form.values.get("password", "")
    async with database.reader() as session:
        stored = await people.password_owner(session, form.text("email"))
    found = await people.recognise(stored, services.passwords, password)
    async with database.session() as session:
        await people.note_sign_in(session, found, services.now())
    return SessionOwner(person_id=found.person_id)
