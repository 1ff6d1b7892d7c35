"""The demo's tenants and adapters: made once, found again, and added to by a later version."""

from pathlib import Path

import pytest

from loraplex.adapters.registry import life_cycle, registry
from loraplex.adapters.registry.names import AdapterName
from loraplex.adapters.registry.registry import PublishedVersion
from loraplex.platform.demo import seed as seeding
from loraplex.platform.demo.seed import DEMO_ADAPTERS, SeededTenant, demo_adapters, seed
from loraplex.platform.demo.tasks.catalog import TASKS
from loraplex.platform.services import Resources
from loraplex.tenants import api_keys, audit, directory
from loraplex.tenants.api_keys import KeyRecord
from loraplex.tenants.directory import TenantRecord

Rows = dict[str, tuple[TenantRecord, list[KeyRecord], list[PublishedVersion]]]


async def rows(resources: Resources) -> Rows:
    """Each tenant's row, keys and adapter versions."""
    async with resources.database.reader() as session:
        return {
            tenant.name: (
                tenant,
                await api_keys.list_keys(session, tenant.id),
                await registry.list_versions(session, tenant.id),
            )
            for tenant in await directory.list_tenants(session)
        }


async def seed_as_before(resources: Resources, demo_model: Path, folder: Path) -> Rows:
    """What an earlier version left, whose demo had the first two tenants only."""
    for name in sorted(demo_adapters())[:2]:
        (folder / name).symlink_to(DEMO_ADAPTERS / name)
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(seeding, "DEMO_ADAPTERS", folder)
        await seed(resources, demo_model)
    return await rows(resources)


def models(seeded: list[SeededTenant]) -> set[str]:
    return {model for tenant in seeded for model in tenant.adapters}


async def test_every_task_has_a_tenant_and_an_adapter_and_a_second_start_changes_nothing(
    resources: Resources, demo_model: Path
) -> None:
    seeded = await seed(resources, demo_model)
    before = await rows(resources)
    assert len(seeded) >= 3
    assert models(seeded) == {task.model for task in TASKS}
    assert await seed(resources, demo_model) == seeded
    assert await rows(resources) == before


async def test_a_start_on_an_earlier_versions_data_adds_the_new_tenant_and_touches_no_other(
    resources: Resources, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = await seed_as_before(resources, demo_model, tmp_path_factory.mktemp("earlier"))
    assert list(before) == ["acme", "globex"]
    async with resources.database.session() as session:
        await directory.suspend(session, "globex")
        await registry.publish(
            session,
            before["acme"][0].id,
            registry.Publication("own", "f" * 64, 8, 1000, resources.engine.model.name),
            resources.now(),
        )
    before = await rows(resources)
    seeded = await seed(resources, demo_model)
    after = await rows(resources)
    assert [tenant.name for tenant in seeded] == ["acme", "globex", "initech"]
    assert {name: after[name] for name in before} == before
    _, keys, versions = after["initech"]
    assert len(keys) == 1
    assert {version.model for version in versions} == {
        task.model for task in TASKS if task.tenant == "initech"
    }


async def test_a_demo_adapter_that_was_deleted_stays_deleted(
    resources: Resources, demo_model: Path
) -> None:
    seeded = await seed(resources, demo_model)
    async with resources.database.session() as session:
        tenant = await directory.get_by_name(session, "acme")
        adapter = AdapterName(tenant.id, seeded[0].adapters[0].partition("/")[2])
        act = audit.Act(audit.CLI, resources.now())
        await life_cycle.delete_adapter(session, act, adapter, "drain")
    again = await seed(resources, demo_model)
    assert models(seeded) - models(again) == {f"acme/{adapter.adapter}"}
