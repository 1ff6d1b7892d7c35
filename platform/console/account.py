"""One's own account: roles, sessions, password."""

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from loraplex.platform.console.access import OwnForm, Session, SignedIn, drop_cookie
from loraplex.platform.console.composition import console_of
from loraplex.platform.console.pages import lead_to, render
from loraplex.platform.console.route import SIGN_IN, ConsoleRoute
from loraplex.platform.console.throttle import Counted, TooManyAttempts
from loraplex.platform.deps import ServicesOf
from loraplex.platform.services import Services
from loraplex.tenants import console_sessions, people
from loraplex.tenants.errors import SignInRefused, ValueRefused

router = APIRouter(route_class=ConsoleRoute, prefix="/account")

HOME = "/console/account"


@router.get("")
async def show_account(session: SignedIn, request: Request, services: ServicesOf) -> Response:
    """Who is signed in, what they may, and where else."""
    return await _page(request, services, session)


@router.post("/sessions/{session_id}/end")
async def end_session(
    session: SignedIn, session_id: str, request: Request, _form: OwnForm, services: ServicesOf
) -> Response:
    """Sign out at one browser."""
    async with services.resources.database.session() as transaction:
        await console_sessions.end_one(transaction, session.owner, session_id)
    return lead_to(request, HOME, "That session is over.")


@router.post("/sign-out")
async def sign_out_everywhere(
    session: SignedIn, request: Request, _form: OwnForm, services: ServicesOf
) -> Response:
    """Sign out at all browsers, this one too."""
    async with services.resources.database.session() as transaction:
        await console_sessions.end_everywhere(transaction, session.owner)
    response = RedirectResponse(SIGN_IN, 303)
    drop_cookie(request, response, "session")
    return response


@router.post("/password")
async def change_password(
    session: SignedIn, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Change one's password, by the one before; all sessions end, and one signs in again."""
    console, database = console_of(request), services.resources.database
    person_id = session.owner.person_id
    if person_id is None:
        errors = {"current": "Whoever signs in with an admin key has none."}
        return await _page(request, services, session, errors)
    current = form.values.get("current", "")
    try:
        async with database.reader() as reader:
            email = (await people.get(reader, person_id)).email
            stored = await people.password_owner(reader, email)
        with console.throttle.attempt((Counted(f"password of {person_id}", 5),)):
            found = await people.recognise(stored, services.passwords, current)
        hashed = await services.passwords.hash(form.values.get("password", ""))
        async with database.session() as transaction:
            await people.note_sign_in(transaction, found, services.now())
            await people.set_password(transaction, session.act(services.now()), person_id, hashed)
    except SignInRefused:
        errors = {"current": "That is not your password."}
        return await _page(request, services, session, errors)
    except TooManyAttempts as error:
        return await _page(request, services, session, {"current": str(error)})
    except ValueRefused as error:
        return await _page(request, services, session, {error.field: str(error)})
    response = RedirectResponse(SIGN_IN, 303)
    drop_cookie(request, response, "session")
    return response


async def _page(
    request: Request,
    services: Services,
    session: Session,
    errors: Mapping[str, str] | None = None,
) -> Response:
    async with services.resources.database.reader() as reader:
        person_id = session.owner.person_id
        person = None if person_id is None else await people.get(reader, person_id)
        sessions = await console_sessions.list_of(reader, session.owner, services.now())
    return render(
        request,
        "account.html",
        400 if errors else 200,
        person=person,
        sessions=sessions,
        errors=errors or {},
    )
