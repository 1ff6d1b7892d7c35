"""What the console's routes work with; composed once, at start."""

from dataclasses import dataclass

from fastapi import Request
from jinja2 import Environment

from loraplex.platform.console.assets import Assets, load_assets
from loraplex.platform.console.pages import new_environment
from loraplex.platform.console.sampler import Sampler
from loraplex.platform.console.sessions import Session, Sessions
from loraplex.platform.console.throttle import SignInThrottle
from loraplex.platform.services import Services
from loraplex.tenants import admin_keys


@dataclass(frozen=True, slots=True)
class Console:
    """The console's own parts."""

    services: Services
    sessions: Sessions
    throttle: SignInThrottle
    sampler: Sampler
    assets: Assets
    templates: Environment

    async def find_session(self, cookie: str | None) -> Session | None:
        """The session of a cookie, as long as the key that opened it is good."""
        session = self.sessions.find(cookie)
        if session is None:
            return None
        async with self.services.resources.database.reader() as reader:
            keys = await admin_keys.list_keys(reader)
        now = self.services.now()
        for key in keys:
            alive = key.revoked_at is None and (key.expires_at is None or key.expires_at > now)
            if key.key_id == session.key_id and alive:
                return session
        self.sessions.close(cookie)
        return None


def build_console(services: Services) -> Console:
    """Compose the parts. Nothing is started."""
    resources = services.resources
    assets = load_assets()
    return Console(
        services=services,
        sessions=Sessions(resources.clock, resources.entropy),
        throttle=SignInThrottle(resources.clock),
        sampler=Sampler(services.metrics, resources.engine, resources.clock),
        assets=assets,
        templates=new_environment(assets),
    )


def console_of(request: Request) -> Console:
    """The console that this app was created with."""
    console = request.app.state.console
    assert isinstance(console, Console)
    return console
