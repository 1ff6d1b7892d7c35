"""A chat with a tenant's models, by a key of that tenant; the page's script streams the answer."""

from datetime import timedelta

from fastapi import APIRouter, Request, Response

from loraplex.adapters.registry.resolution import list_callable
from loraplex.platform.console.access import OwnForm, SignedIn
from loraplex.platform.console.pages import base_model_name, render
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.deps import ServicesOf
from loraplex.tenants import api_keys, directory

router = APIRouter(route_class=ConsoleRoute)

LIFETIME = timedelta(minutes=15)


@router.get("/tenants/{name}/playground")
async def show_playground(
    name: str, request: Request, _session: SignedIn, services: ServicesOf, model: str = ""
) -> Response:
    """The chat, and the same request as a command for whoever has no script."""
    base = base_model_name(request)
    async with services.resources.database.reader() as session:
        tenant = await directory.get_by_name(session, name)
        models = await list_callable(session, tenant.id, base) if base else []
    return render(
        request,
        "playground.html",
        tenant=tenant,
        models=[*(model.name for model in models), *([base] if base else [])],
        chosen=model,
        address=f"{request.url.scheme}://{request.url.netloc}",
        lifetime_min=LIFETIME // timedelta(minutes=1),
    )


@router.post("/tenants/{name}/playground/key")
async def create_playground_key(
    name: str, _session: SignedIn, _form: OwnForm, services: ServicesOf
) -> dict[str, str]:
    """Make a key of the tenant that ends by itself; only the page that asked for it has it."""
    resources, now = services.resources, services.now()
    async with resources.database.session() as session:
        tenant = await directory.get_by_name(session, name)
        minted = await api_keys.mint(
            session,
            tenant,
            "playground",
            resources.pepper,
            now,
            resources.entropy,
            now + LIFETIME,
        )
    return {"key": minted.text}
