"""A tenant's keys: made, shown once, rotated, revoked."""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request, Response

from loraplex.platform.console.access import Form, OwnForm
from loraplex.platform.console.pages import Notice, lead_to, render
from loraplex.platform.console.permissions import Inside, Place
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.deps import ServicesOf
from loraplex.platform.services import Services
from loraplex.tenants import api_keys, key_changes, projects
from loraplex.tenants.api_keys import KeyRecord
from loraplex.tenants.errors import KeyEnded, ProjectNotFound, ProjectProtected, ValueRefused
from loraplex.tenants.key_changes import NewKey
from loraplex.tenants.key_scopes import KeyScopes, networks_of
from loraplex.tenants.roles import TENANT_GRANTS, TenantRole

router = APIRouter(route_class=ConsoleRoute, prefix="/tenants/{name}/keys")

LIFETIMES = MappingProxyType(
    {
        "": ("never", None),
        "1": ("in a day", timedelta(days=1)),
        "30": ("in 30 days", timedelta(days=30)),
        "90": ("in 90 days", timedelta(days=90)),
        "365": ("in a year", timedelta(days=365)),
    }
)
GRACES = MappingProxyType(
    {
        "86400": "for another day",
        "0": "no longer, from now on",
        "3600": "for another hour",
        "604800": "for another week",
    }
)
FIELDS = ("label", "project", "role", "expires", "models", "addresses")
_SHOWN_ONCE = "Copy the new key now. It is shown this once and stored nowhere."
SeesKeys = Annotated[Place, Depends(Inside("keys.read"))]
ChangesKeys = Annotated[Place, Depends(Inside("keys.write"))]


@router.get("")
async def show_keys(place: SeesKeys, request: Request, services: ServicesOf) -> Response:
    """All keys, the newest first, and a form for one more."""
    return await _page(request, services, place)


@router.post("")
async def create_key(
    place: ChangesKeys, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Make a key; this answer shows it, once: it is stored nowhere."""
    resources, now = services.resources, services.now()
    typed = {field: form.text(field) for field in FIELDS}
    if typed["expires"] not in LIFETIMES:
        return await _page(request, services, place, typed, {"expires": "Choose one of the list."})
    lifetime = LIFETIMES[typed["expires"]][1]
    try:
        wanted = NewKey(
            label=typed["label"],
            project=typed["project"] or projects.DEFAULT,
            scopes=_scopes(form),
            expires_at=now + lifetime if lifetime else None,
        )
        async with resources.database.session() as transaction:
            minted = await key_changes.create(
                transaction,
                place.grantor(now),
                place.tenant,
                wanted,
                resources.pepper,
                resources.entropy,
            )
    except ValueRefused as error:
        return await _page(request, services, place, typed, {error.field: str(error)})
    except (ProjectNotFound, ProjectProtected) as error:
        return await _page(request, services, place, typed, {"project": str(error)})
    return await _page(request, services, place, notice=Notice(_SHOWN_ONCE, minted.text))


@router.get("/{key_id}/rotate")
async def ask_to_rotate(
    place: ChangesKeys, key_id: str, request: Request, services: ServicesOf
) -> Response:
    """What rotating this key means, and the form that does it."""
    return await _one(request, services, place, "rotate_key.html", key_id)


@router.post("/{key_id}/rotate")
async def rotate_key(
    place: ChangesKeys, key_id: str, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Give the key another secret under its id; this answer shows it, once."""
    resources = services.resources
    if form.text("grace") not in GRACES:
        errors = {"grace": "Choose one of the list."}
        return await _one(request, services, place, "rotate_key.html", key_id, errors)
    try:
        async with resources.database.session() as transaction:
            minted = await key_changes.rotate(
                transaction,
                place.grantor(services.now()),
                place.tenant.id,
                key_id,
                timedelta(seconds=int(form.text("grace"))),
                resources.pepper,
                resources.entropy,
            )
    except (KeyEnded, ValueRefused) as error:
        errors = {"grace": str(error)}
        return await _one(request, services, place, "rotate_key.html", key_id, errors)
    notice = Notice(f"{key_id} has a new secret. {_SHOWN_ONCE}", minted.text)
    return await _page(request, services, place, notice=notice)


@router.get("/{key_id}/revoke")
async def ask_to_revoke(
    place: ChangesKeys, key_id: str, request: Request, services: ServicesOf
) -> Response:
    """What revoking this key means, and the button that does it."""
    return await _one(request, services, place, "revoke_key.html", key_id)


@router.post("/{key_id}/revoke")
async def revoke_key(
    place: ChangesKeys, key_id: str, request: Request, _form: OwnForm, services: ServicesOf
) -> Response:
    """Revoke it."""
    async with services.resources.database.session() as transaction:
        act = place.session.act(services.now())
        await key_changes.revoke(transaction, act, place.tenant.id, key_id)
    done = f"The key {key_id} is revoked. Requests with it get 401 from now on."
    return lead_to(request, f"/console/tenants/{place.tenant.name}/keys", done)


@router.post("/{key_id}/revoke-previous")
async def revoke_previous_secret(
    place: ChangesKeys, key_id: str, request: Request, _form: OwnForm, services: ServicesOf
) -> Response:
    """End the grace of the secret before the last rotation."""
    async with services.resources.database.session() as transaction:
        act = place.session.act(services.now())
        await key_changes.revoke_previous(transaction, act, place.tenant.id, key_id)
    done = f"The secret that {key_id} had before opens no more."
    return lead_to(request, f"/console/tenants/{place.tenant.name}/keys", done)


async def _one(
    request: Request,
    services: Services,
    place: Place,
    template: str,
    key_id: str,
    errors: Mapping[str, str] | None = None,
) -> Response:
    async with services.resources.database.reader() as session:
        key = await api_keys.get_key(session, place.tenant.id, key_id)
    status = 400 if errors else 200
    return render(
        request, template, status, place=place, key=key, graces=GRACES, errors=errors or {}
    )


async def _page(
    request: Request,
    services: Services,
    place: Place,
    typed: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
    notice: Notice | None = None,
) -> Response:
    async with services.resources.database.reader() as session:
        keys = await api_keys.list_keys(session, place.tenant.id)
        found = await projects.list_projects(session, place.tenant.id)
    keys.reverse()
    # Those that open the door come first.
    keys.sort(key=lambda key: state_of(key, services) != "active")
    return render(
        request,
        "keys.html",
        400 if errors else 200,
        notice,
        place=place,
        keys=[(key, state_of(key, services)) for key in keys],
        projects=[project.name for project in found if project.status == "active"],
        roles=tuple(TENANT_GRANTS),
        lifetimes={value: text for value, (text, _) in LIFETIMES.items()},
        typed=typed or dict.fromkeys(FIELDS, "") | {"role": "developer", "project": "default"},
        errors=errors or {},
    )


def state_of(key: KeyRecord, services: Services) -> str:
    """`active`, `expired` or `revoked`."""
    if key.revoked_at is not None:
        return "revoked"
    expired = key.expires_at is not None and key.expires_at <= services.now()
    return "expired" if expired else "active"


def entries(text: str) -> tuple[str, ...] | None:
    """A list as people type it, with commas or lines; None where nothing is typed."""
    return tuple(text.replace(",", " ").split()) or None


def _scopes(form: Form) -> KeyScopes:
    """The scopes that were filled in. Raises ValueRefused."""
    addresses = entries(form.text("addresses"))
    return KeyScopes(
        role=cast("TenantRole", form.text("role") or "developer"),
        models=entries(form.text("models")),
        addresses=None if addresses is None else networks_of(addresses),
    )
