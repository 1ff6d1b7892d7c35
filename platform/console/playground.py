"""A chat with a tenant's models, by a key of that tenant; the page's script streams the answer."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from loraplex.adapters.registry.resolution import list_callable
from loraplex.platform.console.access import OwnForm
from loraplex.platform.console.pages import base_model_name, render
from loraplex.platform.console.permissions import Inside, Place
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.deps import ServicesOf
from loraplex.tenants import key_changes
from loraplex.tenants.key_changes import NewKey

router = APIRouter(route_class=ConsoleRoute)

LIFETIME = timedelta(minutes=15)


@router.get("/tenants/{name}/playground")
async def show_playground(
    place: Annotated[Place, Depends(Inside("models.read"))],
    request: Request,
    services: ServicesOf,
    model: str = "",
) -> Response:
    """The chat, and the same request as a command for whoever has no script."""
    base = base_model_name(request)
    async with services.resources.database.reader() as session:
        models = await list_callable(session, place.tenant.id, base) if base else []
    return render(
        request,
        "playground.html",
        place=place,
        models=[*(model.name for model in models), *([base] if base else [])],
        chosen=model,
        address=f"{request.url.scheme}://{request.url.netloc}",
        lifetime_min=LIFETIME // timedelta(minutes=1),
    )


@router.post("/tenants/{name}/playground/key")
async def create_playground_key(
    place: Annotated[Place, Depends(Inside("keys.write", or_else="inference"))],
    _form: OwnForm,
    services: ServicesOf,
) -> dict[str, str]:
    """Make a key of the tenant that ends by itself; only the page that asked for it has it."""
    resources, now = services.resources, services.now()
    async with resources.database.session() as session:
        wanted = NewKey("playground", expires_at=now + LIFETIME)
        minted = await key_changes.create(
            session,
            place.grantor(now),
            place.tenant,
            wanted,
            resources.pepper,
            resources.entropy,
        )
    return {"key": minted.text}
