"""The demo's tenants, keys and adapters, made at first start and found again ever after."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.registry import registry, resolution
from loraplex.adapters.registry.names import AdapterName
from loraplex.adapters.registry.registry import Publication
from loraplex.platform.services import Resources
from loraplex.tenants import api_keys, directory
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import KeyRevoked, TenantNotFound

DEMO_ADAPTERS = Path(__file__).with_name("adapters")
"""`<tenant>/<adapter>/` with a PEFT checkpoint each; all of them ship in the package."""
KEY_PURPOSE = "demo"


@dataclass(frozen=True, slots=True)
class SeededTenant:
    """A demo tenant, ready to be used."""

    name: str
    key: str | None
    """None where the operator revoked the demo key."""
    adapters: tuple[str, ...]
    """As a request names them: `tenant/adapter`."""


def demo_adapters() -> dict[str, list[Path]]:
    """The folders of the demo's adapters by tenant, both in order of name."""
    return {
        tenant.name: sorted(path for path in tenant.iterdir() if path.is_dir())
        for tenant in sorted(DEMO_ADAPTERS.iterdir())
        if tenant.is_dir()
    }


async def seed(resources: Resources, model_dir: Path) -> list[SeededTenant]:
    """Make what is missing of the demo; `model_dir` holds the converted base model."""
    base = BaseShapes.read(model_dir)
    now = resources.now()
    seeded = []
    for name, folders in demo_adapters().items():
        tenant = await _tenant(resources, name, now)
        for folder in folders:
            checkpoint = inspect(folder, base)
            async with resources.database.reader() as session:
                adapter = AdapterName(tenant.id, folder.name)
                there = await registry.find_version(session, adapter, checkpoint.digest)
            if there is not None and there.standing.status != "ready":
                continue  # somebody retired or deleted it, and publishing would bring it back
            publication = Publication(
                folder.name,
                checkpoint.digest,
                checkpoint.rank,
                checkpoint.num_bytes,
                resources.engine.model.name,
            )
            async with (
                resources.adapter_bytes.kept(
                    checkpoint.digest, partial(resources.store.put, checkpoint), lambda: None
                ) as claim,
                resources.database.session() as session,
            ):
                await registry.publish(session, tenant.id, publication, now, claim=claim)
        seeded.append(await _describe(resources, tenant, now))
    return seeded


async def _tenant(resources: Resources, name: str, now: datetime) -> TenantRecord:
    async with resources.database.session() as session:
        try:
            return await directory.get_by_name(session, name)
        except TenantNotFound:
            return await directory.create(session, name, now, resources.entropy)


async def _describe(resources: Resources, tenant: TenantRecord, now: datetime) -> SeededTenant:
    async with resources.database.session() as session:
        try:
            minted = await api_keys.derive(session, tenant, KEY_PURPOSE, resources.pepper, now)
            key: str | None = minted.text
        except KeyRevoked:
            key = None
        models = await resolution.list_models(session, tenant.id, resources.engine.model.name)
    return SeededTenant(tenant.name, key, tuple(version.model for version in models))
