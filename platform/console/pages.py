"""Renders pages: templates that escape everything, with what all of them show."""

from pathlib import Path

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from loraplex.engine.errors import EngineUnavailable
from loraplex.platform.console import formats
from loraplex.platform.console.assets import Assets
from loraplex.platform.console.sessions import Session
from loraplex.platform.deps import services_of

TEMPLATES = Path(__file__).with_name("templates")


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


def render(request: Request, template: str, status: int = 200, **context: object) -> HTMLResponse:
    """A page for whoever is signed in, or for nobody."""
    services = services_of(request)
    session: Session | None = getattr(request.state, "session", None)
    common: dict[str, object] = {
        "session": session,
        "notice": session.take_notice() if session else None,
        "path": request.url.path,
        "now": services.now(),
        "connected": services.resources.engine.connected,
        "base_model": base_model_name(request),
        "errors": {},
    }
    page = request.app.state.console.templates.get_template(template)
    return HTMLResponse(page.render(common | context), status)


def base_model_name(request: Request) -> str | None:
    """The base model's name; None before a worker has introduced itself."""
    try:
        return services_of(request).resources.engine.model.name
    except EngineUnavailable:
        return None
