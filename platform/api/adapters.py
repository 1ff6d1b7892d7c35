"""`/v1/adapters`: a tenant's own adapters, uploaded and listed with the tenant's key."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from loraplex.adapters.registry import registry
from loraplex.adapters.registry.registry import PublishedVersion
from loraplex.platform.api.adapter_aliases import alias_routes
from loraplex.platform.api.adapter_versions import version_routes
from loraplex.platform.api.adapter_warm import warm_routes
from loraplex.platform.api.owner import TENANTS, actor_of
from loraplex.platform.api.paging import Listing, Page, listing
from loraplex.platform.api.unread import refuse_unread
from loraplex.platform.api.views import AdapterVersionView
from loraplex.platform.deps import Caller, ServicesOf, chunks_of
from loraplex.platform.log import AccessLine
from loraplex.platform.permissions import caller_may
from loraplex.platform.receiving import TAR_TYPES
from loraplex.platform.upload_files import ADAPTER_FILES, REQUIRED_FILES
from loraplex.platform.uploads import receive

router = APIRouter(tags=["adapters"])


def upload_form() -> dict[str, Any]:
    """The OpenAPI description of an upload, which is read as it comes."""
    file = {"type": "string", "format": "binary"}
    name = {"type": "string", "description": "The adapter's name, a slug."}
    properties: dict[str, object] = {"name": name, **dict.fromkeys(ADAPTER_FILES, file)}
    form = {"type": "object", "required": list(REQUIRED_FILES), "properties": properties}
    content: dict[str, object] = {"multipart/form-data": {"schema": form}}
    content |= {kind: {"schema": file} for kind in TAR_TYPES}
    return {
        "requestBody": {"required": True, "content": content},
        "parameters": [{"in": "query", "name": "name", "required": False, "schema": name}],
    }


@router.post(
    "/v1/adapters",
    status_code=201,
    openapi_extra=upload_form(),
    dependencies=[caller_may("adapters.write")],
)
async def upload_adapter(
    request: Request, caller: Caller, services: ServicesOf
) -> AdapterVersionView:
    """Upload a PEFT LoRA checkpoint: checked, published as the newest version, callable at once. It
    is a form, or an archive of its folder with `name` in the query.

    The same bytes again are the version that they were before.
    """
    actor = actor_of(caller, AccessLine.of(request.scope).request_id)
    content_type = request.headers.get("content-type", "")
    chunks = chunks_of(request)
    name = request.query_params.get("name")
    version = await receive(services.resources, caller.tenant_id, content_type, chunks, actor, name)
    return AdapterVersionView.of(version)


@router.get("/v1/adapters", dependencies=[caller_may("adapters.read")])
async def list_adapters(
    caller: Caller, services: ServicesOf, page: Annotated[Page, Query()]
) -> Listing[AdapterVersionView]:
    """List the tenant's adapters by name, each with its newest version."""
    async with services.resources.database.reader() as session:
        versions = await registry.list_versions(session, caller.tenant_id)
    newest: dict[str, PublishedVersion] = {}
    for version in versions:
        newest.setdefault(version.model, version)
    return listing([AdapterVersionView.of(version) for version in newest.values()], page)


# Whoever may run requests may say that they will come: an application's key often can no more.
for routes in (
    version_routes(TENANTS),
    alias_routes(TENANTS),
    warm_routes(TENANTS, "inference"),
):
    router.include_router(routes, prefix="/v1/adapters", dependencies=[Depends(refuse_unread)])
