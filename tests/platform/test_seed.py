"""The demo's tenants and adapters: made once, found again, and added to by a later version."""

from pathlib import Path

import pytest

from loraplex.adapters.registry import life_cycle, registry, tenant_deletion
from loraplex.adapters.registry.names import AdapterName
from loraplex.adapters.registry.registry import PublishedVersion
from loraplex.platform.demo import seed as seeding
from loraplex.platform.demo.seed import DEMO_ADAPTERS, Demo, demo_adapters, seed
from loraplex.platform.demo.tasks.catalog import TASKS
from loraplex.platform.services import Resources
from loraplex.tenants import api_keys, audit, directory
from loraplex.tenants.api_keys import KeyRecord
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.erasure import erase
from loraplex.tenants.tables import Tenant

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


def models(seeded: Demo) -> set[str]:
    return {model for tenant in seeded.tenants for model in tenant.adapters}


async def test_every_task_has_a_tenant_and_an_adapter_and_a_second_start_changes_nothing(
    resources: Resources, demo_model: Path
) -> None:
    seeded = await seed(resources, demo_model)
    before = await rows(resources)
    assert len(seeded.tenants) >= 3
    assert models(seeded) == {task.model for task in TASKS}
    assert await seed(resources, demo_model) == seeded
    assert await rows(resources) == before


async def test_a_start_on_an_earlier_versions_data_adds_the_new_tenant_and_touches_no_other(
    resources: Resources, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = await seed_as_before(resources, demo_model, tmp_path_factory.mktemp("earlier"))
    assert list(before) == ["acme", "globex"]
    async with resources.database.session() as session:
        globex = await directory.get_by_name(session, "globex")
        await directory.suspend(session, audit.Act(audit.CLI, resources.now()), globex.id)
        await registry.publish(
            session,
            before["acme"][0].id,
            registry.Publication("own", "f" * 64, 8, 1000, resources.engine.model.name),
            resources.now(),
        )
    before = await rows(resources)
    seeded = await seed(resources, demo_model)
    after = await rows(resources)
    assert [tenant.name for tenant in seeded.tenants] == ["acme", "globex", "initech"]
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
        adapter = AdapterName(tenant.id, seeded.tenants[0].adapters[0].partition("/")[2])
        act = audit.Act(audit.CLI, resources.now())
        await life_cycle.delete_adapter(session, act, adapter, "drain")
    again = await seed(resources, demo_model)
    assert models(seeded) - models(again) == {f"acme/{adapter.adapter}"}


async def test_a_demo_tenant_that_was_deleted_stays_deleted_and_its_name_is_for_others(
    resources: Resources, demo_model: Path
) -> None:
    await seed(resources, demo_model)
    act = audit.Act(audit.CLI, resources.now())
    async with resources.database.session() as session:
        acme = await directory.get_by_name(session, "acme")
        await tenant_deletion.begin(session, act, acme.id)
    assert (await seed(resources, demo_model)).left_alone == ("acme",)
    async with resources.database.session() as session:
        await erase(session, await session.get_one(Tenant, acme.id), act.at)
    assert (await seed(resources, demo_model)).left_alone == ("acme",)
    assert "acme" not in await rows(resources)
    async with resources.database.session() as session:
        new = directory.NewTenant("acme")
        await directory.add(session, act, new, resources.entropy)
    again = await seed(resources, demo_model)
    assert again.left_alone == ("acme",)
    assert [tenant.name for tenant in again.tenants] == ["globex", "initech"]
    assert (await rows(resources))["acme"][1:] == ([], [])


async def test_the_demo_leaves_alone_a_tenant_of_its_name_that_was_there_before_it(
    resources: Resources, demo_model: Path
) -> None:
    async with resources.database.session() as session:
        act = audit.Act(audit.CLI, resources.now())
        await directory.add(session, act, directory.NewTenant("globex"), resources.entropy)
    seeded = await seed(resources, demo_model)
    assert seeded.left_alone == ("globex",)
    assert (await rows(resources))["globex"][1:] == ([], [])
