"""Tenants: names, ranges and status."""

import asyncio
import secrets
from dataclasses import asdict
from datetime import datetime, timedelta

import pytest

from loraplex.tenants import directory, limit_changes
from loraplex.tenants.audit import CLI, Act, Actor, AuditFilter, find_events
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantChange, TenantRecord
from loraplex.tenants.errors import NameInvalid, TenantExists, TenantNotFound, ValueRefused
from loraplex.tenants.ids import new_id
from loraplex.tenants.key_scopes import of_platform
from loraplex.tenants.limit_changes import NewLimit
from loraplex.tenants.limit_parents import LimitOwner
from loraplex.tenants.limits import AdapterLimits, Limits, TenantLimits


async def create(
    database: Database, name: str, now: datetime, weight: float = 1.0, **limits: int
) -> TenantRecord:
    async with database.session() as session:
        return await directory.create(
            session, name, now, secrets.token_bytes, weight, TenantLimits(**limits)
        )


async def test_a_tenant_is_found_by_name_and_by_id(database: Database, now: datetime) -> None:
    made = await create(database, "acme", now, weight=2.5, concurrency=7)
    async with database.reader() as session:
        assert await directory.get_by_name(session, "acme") == made
        assert await directory.get(session, made.id) == made
    assert (made.status, made.weight, made.limits) == ("active", 2.5, TenantLimits(concurrency=7))


async def test_a_tenant_that_is_not_there_is_not_found(database: Database) -> None:
    async with database.reader() as session:
        with pytest.raises(TenantNotFound):
            await directory.get_by_name(session, "nobody")
        with pytest.raises(TenantNotFound):
            await directory.get(session, "tnt_nobody")


async def test_a_name_is_taken_once(database: Database, now: datetime) -> None:
    await create(database, "acme", now)
    with pytest.raises(TenantExists):
        await create(database, "acme", now)


@pytest.mark.parametrize("name", ["a", "0", "a" * 40, "a-b-3"])
async def test_a_slug_is_a_name(database: Database, now: datetime, name: str) -> None:
    assert (await create(database, name, now)).name == name


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "a/b", "a@1", "é", "a\n", "a" * 41])
async def test_anything_else_is_not_a_name(database: Database, now: datetime, name: str) -> None:
    with pytest.raises(NameInvalid):
        await create(database, name, now)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e7])
async def test_a_weight_out_of_range_is_refused(
    database: Database, now: datetime, weight: float
) -> None:
    with pytest.raises(ValueRefused) as refused:
        await create(database, "acme", now, weight=weight)
    assert refused.value.field == "weight"


@pytest.mark.parametrize("field", ["requests_per_minute", "tokens_per_minute", "concurrency"])
@pytest.mark.parametrize("value", [0, -1, 2_000_000_001])
async def test_a_limit_out_of_range_is_refused(
    database: Database, now: datetime, field: str, value: int
) -> None:
    with pytest.raises(ValueRefused) as refused:
        await create(database, "acme", now, **{field: value})
    assert refused.value.field == field


async def test_tenants_are_listed_by_name(database: Database, now: datetime) -> None:
    for name in ("b", "a", "c"):
        await create(database, name, now)
    async with database.reader() as session:
        assert [t.name for t in await directory.list_tenants(session)] == ["a", "b", "c"]


async def test_suspending_and_resuming_can_be_repeated(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    async with database.session() as session:
        for change, status in (
            (directory.suspend, "suspended"),
            (directory.suspend, "suspended"),
            (directory.resume, "active"),
            (directory.resume, "active"),
        ):
            assert (await change(session, Act(CLI, now), acme.id)).status == status


async def test_an_unknown_tenant_cannot_be_suspended(database: Database, now: datetime) -> None:
    with pytest.raises(TenantNotFound):
        async with database.session() as session:
            await directory.suspend(session, Act(CLI, now), "nobody")


def test_ids_sort_by_time(now: datetime) -> None:
    ids = [
        new_id("tnt", now + timedelta(milliseconds=i), bytes([255 - i]).__mul__) for i in range(20)
    ]
    assert ids == sorted(ids)


def test_an_id_is_a_uuid_of_version_7(now: datetime) -> None:
    prefix, _, digits = new_id("tnt", now, lambda n: b"\xff" * n).partition("_")
    assert prefix == "tnt"
    assert int(digits[:12], 16) == int(now.timestamp() * 1000)
    assert (digits[12], digits[16]) == ("7", "b")


def test_defaults_stand_in_for_limits_that_a_tenant_lacks() -> None:
    defaults = Limits(1, 2, 3)
    assert TenantLimits().over(defaults) == defaults
    assert TenantLimits(tokens_per_minute=9).over(defaults) == Limits(1, 9, 3)


def test_a_platform_limit_of_nothing_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Limits(1, 0, 1)


async def test_what_changes_of_a_tenant_is_told_and_the_rest_stays(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    act = Act(Actor("admin_key", "adm_1"), now)
    adapters = AdapterLimits(adapter_max_rank=64, adapter_storage_bytes=2**40)
    async with database.session() as session:
        wanted = TenantChange(limits={"concurrency": 3}, adapters=asdict(adapters))
        await directory.change(session, act, acme.id, wanted)
        await directory.change(session, act, acme.id, wanted)
        changed = await directory.change(session, act, acme.id, TenantChange(weight=2.0))
        assert changed == await directory.get(session, acme.id)
    async with database.reader() as session:
        first, limit, second, *others = (await find_events(session, AuditFilter(), 9))[::-1]
    assert (changed.weight, changed.limits.concurrency, changed.adapters) == (2.0, 3, adapters)
    assert others == []
    assert (first.actor, first.action, first.subject) == ("adm_1", "tenant.limits", "acme")
    assert first.detail == {
        "adapter_storage_bytes": {"from": None, "to": 2**40},
        "adapter_max_rank": {"from": None, "to": 64},
    }
    plain = {"value": 3, "burst": None, "mode": "enforce", "on_store_loss": None}
    assert (limit.action, limit.actor, limit.subject) == ("limit.set", "adm_1", f"tenant/{acme.id}")
    assert limit.detail == {"dimension": "concurrency", "from": None, "to": plain}
    assert second.detail == {"weight": {"from": 1.0, "to": 2.0}}


async def test_a_tenants_limit_is_one_and_the_same_however_it_is_set(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    act, owner = Act(CLI, now), LimitOwner(acme.id, "tenant", acme.id)
    shadow = NewLimit(1000, burst=1000, mode="shadow", on_store_loss="open")
    async with database.session() as session:
        args = (session, of_platform(act), owner, "requests_per_minute", shadow, Limits(1, 1, 1))
        await limit_changes.put(*args)
        change = TenantChange(limits={"requests_per_minute": 10})
        changed = await directory.change(session, act, acme.id, change)
        assert changed.limits.requests_per_minute == 10
        (stored,) = await limit_changes.list_limits(session, acme.id)
        assert stored.limit == NewLimit(10)
        for _ in range(2):
            gone = TenantChange(limits={"requests_per_minute": None})
            await directory.change(session, act, acme.id, gone)
        assert await limit_changes.list_limits(session, acme.id) == []
    async with database.reader() as session:
        events = await find_events(session, AuditFilter(action="limit"), 9)
    assert [event.action for event in events] == ["limit.remove", "limit.set", "limit.set"]


async def test_of_two_changes_at_once_each_keeps_what_the_other_one_names(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    async def change(wanted: TenantChange) -> None:
        async with database.session() as session:
            await directory.get(session, acme.id)  # what a route has read before it waits
            await both.wait()
            await directory.change(session, Act(CLI, now), acme.id, wanted)

    both = asyncio.Barrier(2 if database.url.get_backend_name() != "sqlite" else 1)
    await asyncio.gather(
        change(TenantChange(weight=3.0, limits={"ttft_deadline_ms": 5})),
        change(TenantChange(limits={"concurrency": 2}, adapters={"adapter_max_rank": 8})),
    )
    async with database.reader() as session:
        found = await directory.get(session, acme.id)
    assert found.limits == TenantLimits(concurrency=2, ttft_deadline_ms=5)
    assert (found.weight, found.adapters) == (3.0, AdapterLimits(adapter_max_rank=8))


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"adapter_storage_bytes": 0}, "adapter_storage_bytes"),
        ({"adapter_storage_bytes": 2**50 + 1}, "adapter_storage_bytes"),
        ({"adapter_max_rank": 2_000_000_001}, "adapter_max_rank"),
        ({"adapter_floor_bytes": 2, "adapter_cap_bytes": 1}, "adapter_floor_bytes"),
    ],
)
async def test_limits_of_adapters_out_of_range_are_refused_by_field(
    database: Database, acme: TenantRecord, now: datetime, limits: dict[str, int], field: str
) -> None:
    wanted = TenantChange(adapters=limits)
    async with database.session() as session:
        with pytest.raises(ValueRefused) as refused:
            await directory.change(session, Act(CLI, now), acme.id, wanted)
    assert refused.value.field == field
