"""Signing in elsewhere: to the issuer, and back."""

import logging
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from loraplex.platform.console.access import (
    cookie_name,
    drop_cookie,
    same_origin_path,
    set_cookie,
)
from loraplex.platform.console.composition import console_of
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.console.sign_in import enter, sign_in_page
from loraplex.platform.console.throttle import Counted, TooManyAttempts
from loraplex.platform.deps import ServicesOf, address_of
from loraplex.platform.oidc.attempts import Attempts, Finish
from loraplex.platform.oidc.errors import IssuerUnavailable, SignInFailed
from loraplex.platform.services import Services
from loraplex.tenants import audit, identities
from loraplex.tenants.audit import Act
from loraplex.tenants.console_sessions import SessionOwner
from loraplex.tenants.errors import PersonExists, SignInRefused, ValueRefused
from loraplex.tenants.identities import Role
from loraplex.tenants.sign_in_states import KEPT

router = APIRouter(route_class=ConsoleRoute, prefix="/sign-in/oidc")

CALLBACK = "/console/sign-in/oidc/callback"
MAX_BEGUN = 60
"""A minute and address; each is a row of the database for ten minutes."""
_DOWN = "The issuer does not answer now. Try again, or sign in by another way."
_log = logging.getLogger(__name__)


@router.get("")
async def go_to_issuer(
    request: Request, following: Annotated[str, Query(alias="next")] = ""
) -> Response:
    """Begin an attempt; the browser goes to the issuer with it."""
    attempts, following = _attempts(request), same_origin_path(following)
    begun_here = Counted(f"begun at {address_of(request) or ''}", MAX_BEGUN)
    try:
        console_of(request).throttle.count((begun_here,))
    except TooManyAttempts as error:
        return sign_in_page(request, following, {"issuer": str(error)}, 429)
    public_url = attempts.resources.settings.public_url
    root = public_url or f"{request.url.scheme}://{request.url.netloc}"
    try:
        start = await attempts.begin(root + CALLBACK, following)
    except IssuerUnavailable as error:
        return _down(request, following, error)
    response = RedirectResponse(start.url, 303)
    name = _cookie(start.state)
    set_cookie(request, response, name, start.cookie, int(KEPT.total_seconds()))
    return response


@router.get("/callback")
async def come_from_issuer(request: Request, services: ServicesOf) -> Response:
    """Finish the attempt that the browser comes back with."""
    attempts = _attempts(request)
    name = _cookie(request.query_params.get("state", ""))
    cookie = request.cookies.get(cookie_name(request, name))
    try:
        finish = await attempts.finish(request.query_params, cookie)
        owner = await _person(services, finish)
    except IssuerUnavailable as error:
        response = _down(request, "/console", error)
    except (SignInFailed, SignInRefused, PersonExists, ValueRefused) as error:
        _log.info("signing in by the issuer failed: %s", type(error).__name__)
        response = sign_in_page(request, "/console", {"issuer": str(error)}, 401)
    else:
        response = await enter(request, owner, same_origin_path(finish.following))
    drop_cookie(request, response, name)
    return response


def _attempts(request: Request) -> Attempts:
    attempts = console_of(request).elsewhere
    if attempts is None:
        raise HTTPException(404)
    return attempts


async def _person(services: Services, finish: Finish) -> SessionOwner:
    """Whoever the issuer vouches for, admitted by the settings' rules if not known yet."""
    resources = services.resources
    email = (finish.identity.verified_email or "").lower()
    roles = [
        Role(rule.role, rule.tenant)
        for rule in resources.settings.oidc_admit
        if rule.admits(email, finish.claims)
    ]
    async with resources.database.session() as session:
        person_id = await identities.recognise(
            session, Act(audit.PLATFORM, services.now()), finish.identity, roles, resources.entropy
        )
    return SessionOwner(person_id=person_id)


def _down(request: Request, following: str, error: IssuerUnavailable) -> Response:
    _log.warning("the issuer of identities cannot be asked: %s", error)
    return sign_in_page(request, following, {"issuer": _DOWN}, 503)


def _cookie(state: str) -> str:
    """Each attempt has a cookie of its own, so that those of two tabs go on beside each other."""
    return "oidc_" + "".join(c for c in state[:8] if c in "0123456789abcdef")
