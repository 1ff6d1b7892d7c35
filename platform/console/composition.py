"""What the console's routes work with; composed once, at start."""

from dataclasses import dataclass

from fastapi import Request
from jinja2 import Environment

from loraplex.platform.console.assets import Assets, load_assets
from loraplex.platform.console.pages import new_environment
from loraplex.platform.console.sampler import Sampler
from loraplex.platform.console.throttle import SignInThrottle
from loraplex.platform.oidc.attempts import Attempts
from loraplex.platform.oidc.issuer import ClientIdentity, Issuer
from loraplex.platform.services import Resources, Services
from loraplex.tenants import console_sessions
from loraplex.tenants.console_sessions import SessionOwner, SignedIn


@dataclass(frozen=True, slots=True)
class Console:
    """The console's own parts."""

    services: Services
    elsewhere: Attempts | None
    """Signing in by an issuer of identities; None where the settings name none."""
    throttle: SignInThrottle
    sampler: Sampler
    assets: Assets
    templates: Environment

    async def open_session(self, owner: SessionOwner, user_agent: str) -> str:
        """The cookie of a new session."""
        resources = self.services.resources
        async with resources.database.session() as session:
            return await console_sessions.start(
                session, owner, user_agent, resources.now(), resources.entropy
            )

    async def find_session(self, cookie: str | None) -> SignedIn | None:
        """The session of a cookie, as long as its owner may sign in."""
        if cookie is None:
            return None
        database, now = self.services.resources.database, self.services.now()
        async with database.reader() as reader:
            found = await console_sessions.find(reader, cookie, now)
            is_stale = found is not None and await console_sessions.needs_note(reader, cookie, now)
        if is_stale:
            async with database.session() as session:
                await console_sessions.note_seen(session, cookie, now)
        return found


def build_console(services: Services) -> Console:
    """Compose the parts. Nothing is started."""
    resources = services.resources
    assets = load_assets()
    return Console(
        services=services,
        elsewhere=_elsewhere(resources),
        throttle=SignInThrottle(resources.clock),
        sampler=Sampler(services.metrics, resources.engine, resources.clock),
        assets=assets,
        templates=new_environment(assets),
    )


def _elsewhere(resources: Resources) -> Attempts | None:
    settings = resources.settings
    if settings.oidc_issuer is None or settings.oidc_client_id is None:
        return None
    secret = settings.oidc_client_secret
    identity = ClientIdentity(
        settings.oidc_issuer,
        settings.oidc_client_id,
        secret.get_secret_value() if secret else None,
        settings.oidc_scopes,
    )
    return Attempts(Issuer(identity, resources.clock), resources)


def console_of(request: Request) -> Console:
    """The console that this app was created with."""
    console = request.app.state.console
    assert isinstance(console, Console)
    return console
