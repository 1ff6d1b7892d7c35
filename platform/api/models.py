"""`GET /v1/models`: exactly what the caller's key can call."""

from typing import Any

from fastapi import APIRouter

from loraplex.adapters.registry import registry
from loraplex.adapters.registry.names import AdapterName
from loraplex.adapters.registry.registry import PublishedVersion
from loraplex.adapters.registry.resolution import list_callable, resolve
from loraplex.engine.protocol import ModelInfo
from loraplex.platform.deps import Caller, ServicesOf
from loraplex.platform.errors import ModelNotAllowed
from loraplex.platform.permissions import caller_may

router = APIRouter()


@router.get("/v1/models", dependencies=[caller_may("models.read")])
async def list_models(caller: Caller, services: ServicesOf) -> dict[str, Any]:
    """The base model, and the tenant's own adapters and aliases."""
    base = services.resources.engine.model
    async with services.resources.database.reader() as session:
        models = await list_callable(session, caller.tenant_id, base.name)
    cards = [_base_card(base)] if caller.may_call(base.name) else []
    cards += [
        _adapter_card(m.name, m.version, base)
        for m in models
        if caller.may_call(f"{m.version.model}@{m.version.version}")
    ]
    return {"object": "list", "data": cards}


@router.get("/v1/models/{model:path}", dependencies=[caller_may("models.read")])
async def retrieve_model(model: str, caller: Caller, services: ServicesOf) -> dict[str, Any]:
    """One model, by any name that a completion may use for it."""
    base = services.resources.engine.model
    async with services.resources.database.reader() as session:
        resolved = await resolve(session, caller.tenant_id, model, base.name)
        if not caller.may_call(resolved.name):
            raise ModelNotAllowed(resolved.name)
        if resolved.digest is None:
            return _base_card(base)
        assert resolved.version is not None
        adapter = resolved.name.partition("/")[2].partition("@")[0]
        name = AdapterName(caller.tenant_id, adapter)
        version = await registry.get_version(session, name, resolved.version)
    return _adapter_card(model, version, base)


def _base_card(base: ModelInfo) -> dict[str, Any]:
    return {
        "id": base.name,
        "object": "model",
        "created": 0,
        "owned_by": "platform",
        "parent": None,
        "root": base.name,
        "max_model_len": base.max_model_len,
    }


def _adapter_card(name: str, version: PublishedVersion, base: ModelInfo) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(version.created_at.timestamp()),
        "owned_by": version.model.partition("/")[0],
        "parent": base.name,
        "root": f"{version.model}@{version.version}",
        "max_model_len": base.max_model_len,
    }
