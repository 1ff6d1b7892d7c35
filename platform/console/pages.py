"""Renders pages: templates that escape everything, with what all of them show."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, RedirectResponse

from loraplex.engine.errors import EngineUnavailable
from loraplex.platform.console import formats
from loraplex.platform.console.access import Session, cookie_name, drop_cookie, set_cookie
from loraplex.platform.console.assets import Assets
from loraplex.platform.deps import services_of

TEMPLATES = Path(__file__).with_name("templates")
NOTICE_S = 60
MAX_NOTICE_CHARS = 500


@dataclass(frozen=True, slots=True)
class Notice:
    """What a page says of the last action."""

    text: str
    key: str | None = field(default=None, repr=False)
    """A key that was just made; on the page that answers the form, and nowhere else."""


def new_environment(assets: Assets) -> Environment:
    """Templates, their filters, and the addresses of files."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = assets.url
    for name in ("number", "compact", "size", "milliseconds", "utc", "ago"):
        environment.filters[name] = getattr(formats, name)
    return environment


def render(
    request: Request,
    template: str,
    status: int = 200,
    notice: Notice | None = None,
    **context: object,
) -> HTMLResponse:
    """A page for whoever is signed in, or for nobody."""
    services = services_of(request)
    session: Session | None = getattr(request.state, "session", None)
    kept = _kept_notice(request) if session else None
    common: dict[str, object] = {
        "session": session,
        "notice": notice or kept,
        "path": request.url.path,
        "now": services.now(),
        "connected": services.resources.engine.connected,
        "base_model": base_model_name(request),
        "errors": {},
    }
    page = request.app.state.console.templates.get_template(template)
    response = HTMLResponse(page.render(common | context), status)
    if kept is not None:
        drop_cookie(request, response, "notice")
    return response


def lead_to(request: Request, path: str, notice: str) -> RedirectResponse:
    """The way to another page, which says what was done: once, by a cookie that is then gone."""
    response = RedirectResponse(path, 303)
    set_cookie(request, response, "notice", quote(notice[:MAX_NOTICE_CHARS]), NOTICE_S)
    return response


def _kept_notice(request: Request) -> Notice | None:
    text = request.cookies.get(cookie_name(request, "notice"))
    return Notice(unquote(text)) if text else None


def base_model_name(request: Request) -> str | None:
    """The base model's name; None before a worker has introduced itself."""
    try:
        return services_of(request).resources.engine.model.name
    except EngineUnavailable:
        return None
