"""Who may use a page, and which forms are believed."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request, Response
from starlette.requests import ClientDisconnect

from loraplex.platform.console.errors import CrossSite, FormRefused, SignInNeeded
from loraplex.platform.errors import ClientGone
from loraplex.tenants import console_sessions

Session = console_sessions.SignedIn
CSRF_FIELD = "csrf"
FORM_TYPE = "application/x-www-form-urlencoded"
MAX_FIELDS = 50


@dataclass(frozen=True, slots=True)
class Form:
    """A form, as it was filled in."""

    values: Mapping[str, str]

    def text(self, name: str) -> str:
        """A field without the space around it; empty where it is absent."""
        return self.values.get(name, "").strip()

    def integer(self, name: str) -> int | None:
        """A whole number, which may be written with commas or spaces; None where it is empty.

        Raises:
            FormRefused: it is something else.
        """
        text = self.text(name).replace(",", "").replace(" ", "")
        if not text:
            return None
        if not (text.isascii() and text.isdecimal()) or len(text) > 12:
            raise FormRefused(f"{text[:40]!r} is not a whole number.")
        return int(text)


def by_tls(request: Request) -> bool:
    """True if the browser reaches the console by HTTPS, also behind a proxy that ends TLS."""
    public_url: str | None = request.app.state.services.resources.settings.public_url
    return request.url.scheme == "https" or (public_url or "").startswith("https:")


def cookie_name(request: Request, what: str = "session") -> str:
    """The name of a cookie; browsers hold `__Host-` to HTTPS, this host and path /."""
    return f"__Host-lpx_{what}" if by_tls(request) else f"lpx_{what}"


def set_cookie(request: Request, response: Response, what: str, value: str, max_age_s: int) -> None:
    """Set a cookie that no script and no other site's form can use."""
    response.set_cookie(
        cookie_name(request, what),
        value,
        max_age=max_age_s,
        path="/",
        secure=by_tls(request),
        httponly=True,
        samesite="lax",
    )


def drop_cookie(request: Request, response: Response, what: str) -> None:
    """Let the browser forget a cookie."""
    name = cookie_name(request, what)
    response.delete_cookie(name, path="/", httponly=True, secure=by_tls(request))


async def session_of(request: Request) -> Session:
    """The session of the caller. Raises SignInNeeded."""
    cookie = request.cookies.get(cookie_name(request))
    session: Session | None = await request.app.state.console.find_session(cookie)
    if session is None:
        raise SignInNeeded
    request.state.session = session
    return session


def check_origin(headers: Mapping[str, str]) -> None:
    """Refuse requests that a page of another site makes. Raises CrossSite.

    Browsers say where a request comes from; what says nothing is no browser of a person.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        if site != "same-origin":
            raise CrossSite
        return
    origin = headers.get("origin")
    # The host alone: a proxy that ends TLS changes the scheme.
    if origin is None or urlsplit(origin).netloc != headers.get("host"):
        raise CrossSite


def check_token(form: Form, session: Session) -> None:
    """Refuse forms that no page of this session holds. Raises CrossSite."""
    if not hmac.compare_digest(form.text(CSRF_FIELD).encode(), session.csrf.encode()):
        raise CrossSite


async def read_form(request: Request) -> Form:
    """The form of a request, of whatever origin it is. Raises FormRefused, ClientGone."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
        raise FormRefused(f"The form cannot be read: its type is not {FORM_TYPE}.")
    try:
        text = (await request.body()).decode()
        return Form(dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)))
    except ClientDisconnect:
        raise ClientGone from None
    except ValueError:
        raise FormRefused("The form cannot be read: it is not UTF-8, or too long.") from None


async def own_form(request: Request, session: "SignedIn") -> Form:
    """A form that a page of this session sent. Raises CrossSite, FormRefused."""
    check_origin(request.headers)
    form = await read_form(request)
    check_token(form, session)
    return form


def same_origin_path(target: str | None) -> str:
    """Where to go after signing in: a path of the console, whatever was asked for."""
    if target is None or not target.startswith("/console") or not target.isprintable():
        return "/console"
    parts = urlsplit(target)
    plain = not parts.scheme and not parts.netloc and "\\" not in target
    inside = parts.path == "/console" or parts.path.startswith("/console/")
    return target if plain and inside and ".." not in parts.path else "/console"


SignedIn = Annotated[Session, Depends(session_of)]
OwnForm = Annotated[Form, Depends(own_form)]
