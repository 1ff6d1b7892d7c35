"""What keys cannot give, or be given: no child exceeds its parent."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import pytest
from tests.tenants.conftest import NOW
from tests.tenants.keys import DAY, changed, grantor_of, made, project, rotated

from loraplex.tenants import (
    limit_changes,
    members,
)
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import (
    ExceedsParent,
    SelfWidening,
    TenantsError,
    ValueRefused,
)
from loraplex.tenants.key_changes import KeyChange, NewKey
from loraplex.tenants.key_scopes import (
    Grantor,
    KeyScopes,
    networks_of,
    of_platform,
)
from loraplex.tenants.limit_changes import NewLimit
from loraplex.tenants.limit_parents import LimitOwner
from loraplex.tenants.limits import Limits
from loraplex.tenants.members import Member
from loraplex.tenants.roles import TENANT_GRANTS

DEFAULTS = Limits(requests_per_minute=1000, tokens_per_minute=1_000_000, concurrency=100)


@pytest.fixture
def cli(now: datetime) -> Grantor:
    return of_platform(Act(CLI, now))


def beyond() -> Iterator[tuple[NewKey, str]]:
    """What a tenant_admin's key that is narrowed in every way cannot give."""
    inside = KeyScopes(
        permissions=("inference",), models=("acme/a@1",), addresses=networks_of(["10.1.0.0/16"])
    )
    soon = datetime.fromisoformat("2026-03-02T00:00:00+00:00")
    narrow = NewKey("", "default", inside, soon)
    yield narrow, ""
    yield replace(narrow, scopes=replace(inside, permissions=("usage.read",))), "permissions"
    yield replace(narrow, scopes=replace(inside, permissions=None)), "permissions"
    yield replace(narrow, scopes=replace(inside, models=("acme/b",))), "models"
    yield replace(narrow, scopes=replace(inside, models=("acme/a", "tiny"))), "models"
    yield replace(narrow, scopes=replace(inside, models=None)), "models"
    yield replace(narrow, scopes=replace(inside, addresses=None)), "addresses"
    yield (
        replace(narrow, scopes=replace(inside, addresses=networks_of(["10.0.0.0/7"]))),
        "addresses",
    )
    yield replace(narrow, scopes=replace(inside, addresses=networks_of(["::/0"]))), "addresses"
    yield replace(narrow, expires_at=None), "expires_at"
    yield replace(narrow, expires_at=soon + 9 * DAY), "expires_at"


async def test_a_key_gives_nothing_that_it_has_not(
    database: Database, acme: TenantRecord, cli: Grantor, now: datetime
) -> None:
    scopes = KeyScopes(
        "tenant_admin",
        ("inference", "keys.write", "projects.write"),
        ("acme/a",),
        networks_of(["10.0.0.0/8"]),
    )
    narrow = await made(database, cli, acme, NewKey("", "default", scopes, now + 7 * DAY))
    wide = await made(database, cli, acme, NewKey())
    grantor = await grantor_of(database, narrow.text, now)
    for wanted, field in beyond():
        if not field:
            await made(database, grantor, acme, wanted)
            continue
        with pytest.raises(ExceedsParent) as refused:
            await made(database, grantor, acme, wanted)
        assert refused.value.field == field
    for attempt in (
        rotated(database, grantor, acme, wide.key_id),
        changed(database, grantor, acme, wide.key_id, KeyChange(label="mine")),
    ):
        with pytest.raises(ExceedsParent, match="has more than yours"):
            await attempt
    with pytest.raises(ExceedsParent, match="acme/a"):
        await project(database, grantor, acme, "wide")
    await rotated(database, grantor, acme, narrow.key_id)  # its own secret it may renew
    with pytest.raises(SelfWidening):
        await changed(database, grantor, acme, narrow.key_id, KeyChange(scopes={"models": None}))
    own = LimitOwner(acme.id, "key", narrow.key_id)
    with pytest.raises(SelfWidening):
        async with database.session() as session:
            await limit_changes.put(session, grantor, own, "concurrency", NewLimit(99), DEFAULTS)


async def as_if_by(
    database: Database, tenant: TenantRecord, cli: Grantor, wanted: NewKey
) -> Grantor:
    """Whoever has a new key of this kind."""
    key = await made(database, cli, tenant, wanted)
    return await grantor_of(database, key.text, cli.act.at)


@pytest.mark.parametrize(
    "narrowed",
    [
        NewKey(scopes=KeyScopes("tenant_admin", ("people.write",))),
        NewKey(scopes=KeyScopes("tenant_admin", models=("acme/a",))),
        NewKey(scopes=KeyScopes("tenant_admin", addresses=networks_of(["10.0.0.0/8"]))),
        NewKey(scopes=KeyScopes("tenant_admin"), expires_at=NOW + DAY),
    ],
)
async def test_a_key_that_is_narrowed_makes_nobody_who_is_not(
    database: Database, acme: TenantRecord, cli: Grantor, narrowed: NewKey
) -> None:
    lesser = await as_if_by(database, acme, cli, narrowed)

    async def add(grantor: Grantor, email: str, role: str) -> Member:
        async with database.session() as session:
            return await members.add(session, grantor, acme.id, email, role, secrets.token_bytes)

    ada, bob = await add(cli, "ada@x.org", "developer"), await add(cli, "bob@x.org", "tenant_admin")
    with pytest.raises(ExceedsParent):
        await add(lesser, "eve@x.org", "tenant_admin")
    with pytest.raises(ExceedsParent):
        await add(lesser, "bob@x.org", "read_only")  # no lesser one takes a greater one's role
    async with database.session() as session:
        with pytest.raises(ExceedsParent):
            await members.change_role(
                session, lesser, acme.id, ada.person_id, "tenant_admin", secrets.token_bytes
            )
    if lesser.permissions != cli.permissions:
        async with database.session() as session:
            with pytest.raises(ExceedsParent):
                await members.remove(session, lesser, acme.id, bob.person_id)
    async with database.reader() as session:
        found = await members.list_members(session, acme.id)
    assert [(m.email, m.role) for m in found] == [
        ("ada@x.org", "developer"),
        ("bob@x.org", "tenant_admin"),
    ]


async def test_a_key_that_has_limits_gives_nothing_that_has_none(
    database: Database, acme: TenantRecord, cli: Grantor, now: datetime
) -> None:
    wide = await made(database, cli, acme, NewKey())
    scopes = KeyScopes("tenant_admin")
    key = await made(database, cli, acme, NewKey(scopes=scopes))
    limited = await grantor_of(database, key.text, now)
    await made(database, limited, acme, NewKey())
    of_key = LimitOwner(acme.id, "key", key.key_id)
    async with database.session() as session:
        await limit_changes.put(session, cli, of_key, "concurrency", NewLimit(1), DEFAULTS)
    for attempt in (
        made(database, limited, acme, NewKey()),
        rotated(database, limited, acme, wide.key_id),
    ):
        with pytest.raises(ExceedsParent, match="limits of its own"):
            await attempt
    async with database.session() as session:
        with pytest.raises(ExceedsParent, match="limits of its own"):
            await members.add(
                session, limited, acme.id, "a@x.org", "tenant_admin", secrets.token_bytes
            )
    await rotated(database, limited, acme, key.key_id)


async def test_a_key_does_not_leave_its_projects_limits_by_another_project(
    database: Database, acme: TenantRecord, cli: Grantor
) -> None:
    web = await project(database, cli, acme, "web")
    elsewhere = await made(database, cli, acme, NewKey(scopes=KeyScopes("read_only")))
    permissions = ("keys.write", "inference", *TENANT_GRANTS["read_only"])
    scopes = KeyScopes("tenant_admin", permissions)
    inside = await as_if_by(database, acme, cli, NewKey("", "web", scopes))
    reader = KeyScopes("read_only")
    await made(database, inside, acme, NewKey(scopes=reader))
    async with database.session() as session:
        of_web = LimitOwner(acme.id, "project", web.id)
        await limit_changes.put(session, cli, of_web, "concurrency", NewLimit(1), DEFAULTS)
    await made(database, inside, acme, NewKey("", "web", reader))
    for attempt in (
        made(database, inside, acme, NewKey(scopes=reader)),
        rotated(database, inside, acme, elsewhere.key_id),
    ):
        with pytest.raises(ExceedsParent, match="project has limits"):
            await attempt


@pytest.mark.parametrize(
    ("scopes", "error", "told"),
    [
        (KeyScopes("developer", ("keys.write",)), ExceedsParent, "keys.write"),
        (KeyScopes("owner"), ValueRefused, "role"),  # type: ignore[arg-type]  # wrong on purpose, or replaced for the test
        (KeyScopes(permissions=("fly",)), ValueRefused, "fly"),  # type: ignore[arg-type]  # wrong on purpose, or replaced for the test
        (KeyScopes(models=("acme/b",)), ExceedsParent, "only acme/a"),
        (KeyScopes(models=("acme/a:prod",)), ValueRefused, "alias"),
        (KeyScopes(models=("",)), ValueRefused, "models"),
        (KeyScopes(models=("m",) * 101), ValueRefused, "101"),
    ],
)
async def test_scopes_that_cannot_be_are_refused_by_what_bounds_them(
    database: Database,
    acme: TenantRecord,
    cli: Grantor,
    scopes: KeyScopes,
    error: type[TenantsError],
    told: str,
) -> None:
    await project(database, cli, acme, "web", "acme/a")
    with pytest.raises(error, match=told):
        await made(database, cli, acme, NewKey("", "web", scopes))


async def test_no_limit_exceeds_what_stands_above_it(
    database: Database, acme: TenantRecord, cli: Grantor
) -> None:
    web = await project(database, cli, acme, "web")
    shop = await project(database, cli, acme, "shop")
    key = await made(database, cli, acme, NewKey("", "web"))
    tenant = LimitOwner(acme.id, "tenant", acme.id)
    of_web, of_key = LimitOwner(acme.id, "project", web.id), LimitOwner(acme.id, "key", key.key_id)

    async def put(of: LimitOwner, value: int, burst: int | None = None) -> None:
        async with database.session() as session:
            wanted = NewLimit(value, burst)
            await limit_changes.put(session, cli, of, "requests_per_minute", wanted, DEFAULTS)

    with pytest.raises(ExceedsParent, match="the platform has 1000"):
        await put(of_web, 1001)
    await put(tenant, 5000)
    await put(of_web, 1001)
    with pytest.raises(ExceedsParent, match="the project has 1001"):
        await put(of_key, 1002)
    with pytest.raises(ExceedsParent, match="burst of 1001"):
        await put(of_key, 1000, 2000)
    await put(of_key, 1000)
    await put(LimitOwner(acme.id, "project", shop.id), 999)
    with pytest.raises(ExceedsParent, match="999"):
        await changed(database, cli, acme, key.key_id, KeyChange(project="shop"))
    await put(of_web, 10)  # below its key's, which it holds from now on
    for field, wanted in (
        ("value", NewLimit(0)),
        ("value", NewLimit(2**40)),
        ("burst", NewLimit(5, 0)),
        ("mode", NewLimit(5, None, "maybe")),  # type: ignore[arg-type]  # wrong on purpose, or replaced for the test
        ("on_store_loss", NewLimit(5, None, "enforce", "maybe")),  # type: ignore[arg-type]  # wrong on purpose, or replaced for the test
    ):
        with pytest.raises(ValueRefused) as refused:
            async with database.session() as session:
                await limit_changes.put(
                    session, cli, of_key, "requests_per_minute", wanted, DEFAULTS
                )
        assert refused.value.field == field
    with pytest.raises(ValueRefused, match="burst"):
        async with database.session() as session:
            await limit_changes.put(session, cli, of_key, "concurrency", NewLimit(5, 5), DEFAULTS)
