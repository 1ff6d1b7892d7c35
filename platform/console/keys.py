"""A tenant's keys: made, shown once, revoked."""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from loraplex.platform.console.access import OwnForm, SignedIn
from loraplex.platform.console.pages import render
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.console.sessions import Notice
from loraplex.platform.deps import ServicesOf
from loraplex.platform.services import Services
from loraplex.tenants import api_keys, directory
from loraplex.tenants.api_keys import KeyRecord
from loraplex.tenants.errors import KeyNotFound, ValueRefused

router = APIRouter(route_class=ConsoleRoute)

LIFETIMES = MappingProxyType(
    {
        "": ("never", None),
        "1": ("in a day", timedelta(days=1)),
        "30": ("in 30 days", timedelta(days=30)),
        "90": ("in 90 days", timedelta(days=90)),
        "365": ("in a year", timedelta(days=365)),
    }
)


@router.get("/tenants/{name}/keys")
async def show_keys(
    name: str, request: Request, _session: SignedIn, services: ServicesOf
) -> Response:
    """All keys, the newest first, and a form for one more."""
    return await _page(request, services, name)


@router.post("/tenants/{name}/keys")
async def create_key(
    name: str, request: Request, session: SignedIn, form: OwnForm, services: ServicesOf
) -> Response:
    """Make a key; the next page shows it, once."""
    label, now = form.text("label"), services.now()
    if form.text("expires") not in LIFETIMES:
        return await _page(request, services, name, label, {"expires": "Choose one of the list."})
    lifetime = LIFETIMES[form.text("expires")][1]
    resources = services.resources
    try:
        async with resources.database.session() as transaction:
            tenant = await directory.get_by_name(transaction, name)
            minted = await api_keys.mint(
                transaction,
                tenant,
                label,
                resources.pepper,
                now,
                resources.entropy,
                now + lifetime if lifetime else None,
            )
    except ValueRefused as error:
        return await _page(request, services, name, label, {error.field: str(error)})
    session.notice = Notice(
        "Copy the new key now. It is shown this once and stored nowhere.", minted.text
    )
    return RedirectResponse(f"/console/tenants/{name}/keys", 303)


@router.get("/tenants/{name}/keys/{key_id}/revoke")
async def ask_to_revoke(
    name: str, key_id: str, request: Request, _session: SignedIn, services: ServicesOf
) -> Response:
    """What revoking this key means, and the button that does it."""
    async with services.resources.database.reader() as session:
        tenant = await directory.get_by_name(session, name)
        key = _key_of(await api_keys.list_keys(session, tenant.id), key_id)
    return render(request, "revoke_key.html", tenant=tenant, key=key)


@router.post("/tenants/{name}/keys/{key_id}/revoke")
async def revoke_key(
    name: str, key_id: str, session: SignedIn, _form: OwnForm, services: ServicesOf
) -> Response:
    """Revoke it."""
    async with services.resources.database.session() as transaction:
        tenant = await directory.get_by_name(transaction, name)
        await api_keys.revoke(transaction, tenant.id, key_id, services.now())
    session.notice = Notice(f"The key {key_id} is revoked. Requests with it get 401 from now on.")
    return RedirectResponse(f"/console/tenants/{name}/keys", 303)


async def _page(
    request: Request,
    services: Services,
    name: str,
    label: str = "",
    errors: Mapping[str, str] | None = None,
) -> Response:
    async with services.resources.database.reader() as session:
        tenant = await directory.get_by_name(session, name)
        keys = await api_keys.list_keys(session, tenant.id)
    keys.reverse()
    # Those that open the door come first.
    keys.sort(key=lambda key: state_of(key, services) != "active")
    return render(
        request,
        "keys.html",
        400 if errors else 200,
        tenant=tenant,
        keys=[(key, state_of(key, services)) for key in keys],
        lifetimes=LIFETIMES,
        label=label,
        errors=errors or {},
    )


def state_of(key: KeyRecord, services: Services) -> str:
    """`active`, `expired` or `revoked`."""
    if key.revoked_at is not None:
        return "revoked"
    expired = key.expires_at is not None and key.expires_at <= services.now()
    return "expired" if expired else "active"


def _key_of(keys: list[KeyRecord], key_id: str) -> KeyRecord:
    found = next((key for key in keys if key.key_id == key_id), None)
    if found is None:
        raise KeyNotFound(f"The tenant has no key {key_id[:60]!r}.")
    return found
