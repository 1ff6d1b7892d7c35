"""The demo's tenants, keys and adapters, made at first start and found again ever after.

A tenant is the demo's if it has the key that the secret determines for its name: the row of that
key comes with the tenant, in one transaction, and outlives it. So a demo tenant that was deleted
stays deleted, and one of its name that somebody else made is left alone.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import Checkpoint, inspect
from loraplex.adapters.registry import registry, resolution
from loraplex.adapters.registry.names import AdapterName
from loraplex.adapters.registry.registry import Publication
from loraplex.platform.services import Resources
from loraplex.tenants import api_keys, directory
from loraplex.tenants.audit import PLATFORM, Act
from loraplex.tenants.directory import NewTenant, TenantRecord
from loraplex.tenants.errors import KeyRevoked, TenantNotFound
from loraplex.tenants.tables import ApiKey

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


@dataclass(frozen=True, slots=True)
class Demo:
    """What there is of the demo, and what somebody else had the say of."""

    tenants: tuple[SeededTenant, ...] = ()
    left_alone: tuple[str, ...] = ()
    """Names of which the demo's tenant was deleted, or that somebody else's tenant has."""


def demo_adapters() -> dict[str, list[Path]]:
    """The folders of the demo's adapters by tenant, both in order of name."""
    return {
        tenant.name: sorted(path for path in tenant.iterdir() if path.is_dir())
        for tenant in sorted(DEMO_ADAPTERS.iterdir())
        if tenant.is_dir()
    }


async def seed(resources: Resources, model_dir: Path) -> Demo:
    """Make what is missing of the demo; `model_dir` holds the converted base model."""
    base = BaseShapes.read(model_dir)
    now = resources.now()
    seeded, left_alone = [], []
    for name, folders in demo_adapters().items():
        tenant = await _tenant(resources, name, now)
        if tenant is None:
            left_alone.append(name)
            continue
        await _publish(resources, tenant, [inspect(folder, base) for folder in folders], now)
        seeded.append(await _describe(resources, tenant, now))
    return Demo(tuple(seeded), tuple(left_alone))


async def _publish(
    resources: Resources, tenant: TenantRecord, checkpoints: list[Checkpoint], now: datetime
) -> None:
    for checkpoint in checkpoints:
        adapter = AdapterName(tenant.id, checkpoint.directory.name)
        async with resources.database.reader() as session:
            there = await registry.find_version(session, adapter, checkpoint.digest)
        if there is not None and there.standing.status != "ready":
            continue  # somebody retired or deleted it, and publishing would bring it back
        publication = Publication(
            adapter.adapter,
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


async def _tenant(resources: Resources, name: str, now: datetime) -> TenantRecord | None:
    """The demo's tenant of this name, made if there never was one; None where it was deleted, or
    where somebody else has the name."""
    key_id = api_keys.derived(name, KEY_PURPOSE, resources.pepper).key_id
    async with resources.database.session() as session:
        key = await session.get(ApiKey, key_id)
        try:
            tenant = await directory.get_by_name(session, name)
        except TenantNotFound:
            if key is not None:
                return None
            tenant = await directory.add(
                session, Act(PLATFORM, now), NewTenant(name), resources.entropy
            )
            await api_keys.derive(session, tenant, KEY_PURPOSE, resources.pepper, now)
            return tenant
        is_demos = key is not None and key.tenant_id == tenant.id
        return tenant if is_demos and tenant.status in {"active", "suspended"} else None


async def _describe(resources: Resources, tenant: TenantRecord, now: datetime) -> SeededTenant:
    async with resources.database.session() as session:
        try:
            minted = await api_keys.derive(session, tenant, KEY_PURPOSE, resources.pepper, now)
            key: str | None = minted.text
        except KeyRevoked:
            key = None
        models = await resolution.list_models(session, tenant.id, resources.engine.model.name)
    return SeededTenant(tenant.name, key, tuple(version.model for version in models))
