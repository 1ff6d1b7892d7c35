"""Keys and projects as people make and change them: one secret is current, each change is told."""

import asyncio
import secrets
from datetime import datetime, timedelta
from ipaddress import ip_network

import pytest
import sqlalchemy
from tests.tenants.keys import DAY, changed, made, opens, project, rotated

from loraplex.tenants import (
    api_keys,
    directory,
    key_changes,
    limit_changes,
    projects,
)
from loraplex.tenants.audit import CLI, Act, AuditFilter, find_events
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import (
    AddressRefused,
    KeyEnded,
    KeyNotFound,
    KeyRevoked,
    KeyUnknown,
    PermissionMissing,
    ProjectArchived,
    ProjectExists,
    ProjectNotFound,
    ProjectProtected,
    TenantsError,
    ValueRefused,
)
from loraplex.tenants.key_changes import KeyChange, NewKey
from loraplex.tenants.key_scopes import (
    Grantor,
    KeyScopes,
    address_allowed,
    networks_of,
    of_platform,
)
from loraplex.tenants.limit_changes import NewLimit
from loraplex.tenants.limit_parents import LimitOwner
from loraplex.tenants.limits import Limits

DEFAULTS = Limits(requests_per_minute=1000, tokens_per_minute=1_000_000, concurrency=100)


@pytest.fixture
def postgres_only(database: Database) -> Database:
    if database.url.get_backend_name() == "sqlite":
        pytest.skip("SQLite has one writer")
    return database


@pytest.fixture
def cli(now: datetime) -> Grantor:
    return of_platform(Act(CLI, now))


async def test_a_rotated_key_keeps_its_id_and_both_secrets_open_for_the_grace(
    database: Database, acme: TenantRecord, cli: Grantor, now: datetime
) -> None:
    first = await made(database, cli, acme, NewKey("k"))
    second = await rotated(database, cli, acme, first.key_id)
    assert second.key_id == first.key_id
    for text in (first.text, second.text):
        assert (
            await opens(database, text, now + DAY - timedelta(seconds=1))
        ).key_id == first.key_id
    with pytest.raises(KeyRevoked):
        await opens(database, first.text, now + DAY)
    await opens(database, second.text, now + DAY)
    third = await rotated(database, cli, acme, first.key_id)
    with pytest.raises(TenantsError):  # the oldest of three has ended, whatever grace it had
        await opens(database, first.text, now)
    await opens(database, second.text, now)
    last = await rotated(database, cli, acme, first.key_id, timedelta(0))
    for text in (second.text, third.text):
        with pytest.raises(TenantsError):
            await opens(database, text, now)
    await opens(database, last.text, now)


async def test_a_grace_out_of_range_and_a_revoked_key_are_refused(
    database: Database, acme: TenantRecord, cli: Grantor
) -> None:
    key = await made(database, cli, acme, NewKey())
    for grace in (timedelta(days=31), timedelta(seconds=-1)):
        with pytest.raises(ValueRefused, match="grace_s"):
            await rotated(database, cli, acme, key.key_id, grace)
    async with database.session() as session:
        await key_changes.revoke(session, cli.act, acme.id, key.key_id)
    with pytest.raises(KeyEnded):
        await rotated(database, cli, acme, key.key_id)
    with pytest.raises(KeyEnded):
        await changed(database, cli, acme, key.key_id, KeyChange(label="x"))


async def test_the_secret_before_a_rotation_gives_nothing_and_can_be_ended(
    database: Database, acme: TenantRecord, cli: Grantor, now: datetime
) -> None:
    stolen = await made(database, cli, acme, NewKey(scopes=KeyScopes("tenant_admin")))
    renewed = await rotated(database, cli, acme, stolen.key_id)
    thief = await opens(database, stolen.text, now)
    thief.check("inference")
    for permission in ("keys.write", "people.write"):
        with pytest.raises(PermissionMissing, match="new secret"):
            thief.check(permission)  # type: ignore[arg-type]  # a list of literals
        (await opens(database, renewed.text, now)).check(permission)  # type: ignore[arg-type]  # wrong on purpose, or replaced for the test
    assert thief.as_grantor(cli.act).permissions == thief.permissions
    for _ in range(2):
        async with database.session() as session:
            key = await key_changes.revoke_previous(session, cli.act, acme.id, stolen.key_id)
        assert key.previous_until is None
    with pytest.raises(KeyUnknown):
        await opens(database, stolen.text, now)
    await opens(database, renewed.text, now)
    async with database.reader() as session:
        events = await find_events(session, AuditFilter(action="key.revoke_previous"), 10)
    assert len(events) == 1


def test_a_text_that_is_no_network_is_refused() -> None:
    for text in ("10.0.0.1/8", "example.org", ""):
        with pytest.raises(ValueRefused, match="addresses"):
            networks_of([text])


async def test_a_key_serves_where_it_may_and_its_projects_models_alone(
    database: Database, acme: TenantRecord, cli: Grantor, now: datetime
) -> None:
    web = await project(database, cli, acme, "web", "tiny", "acme/a")
    scopes = KeyScopes(addresses=networks_of(["10.0.0.0/8", "2001:db8::/32"]))
    key = await made(database, cli, acme, NewKey("", "web", scopes))
    principal = await opens(database, key.text, now)
    for address in ("10.9.9.9", "2001:db8::1", "::ffff:10.0.0.1"):
        principal.check_address(address)
    for address in ("11.0.0.1", "2001:db9::1", "unix", "", None):
        with pytest.raises(AddressRefused):
            principal.check_address(address)
    assert principal.may_call("tiny")
    assert principal.may_call("acme/a@3")
    assert not principal.may_call("acme/b@1")
    async with database.session() as session:
        await projects.set_models(session, cli, acme.id, "web", ("acme/a@3",))
    principal = await opens(database, key.text, now)
    assert principal.may_call("acme/a@3")
    assert not principal.may_call("acme/a@4")
    assert not principal.may_call("tiny")
    async with database.session() as session:
        await projects.set_status(session, cli, acme.id, web.id, "archived")
    with pytest.raises(ProjectArchived):
        await opens(database, key.text, now)
    with pytest.raises(ProjectProtected):
        await made(database, cli, acme, NewKey("", "web"))
    async with database.session() as session:
        await projects.set_status(session, cli, acme.id, "web", "active")
    await opens(database, key.text, now)


def test_ipv4_networks_are_the_same_however_they_are_mapped_into_ipv6() -> None:
    networks = networks_of(["::ffff:10.0.0.0/104", "::ffff:192.0.2.1"])
    assert networks == networks_of(["10.0.0.0/8", "192.0.2.1"])
    assert address_allowed(networks, "10.1.2.3")
    assert address_allowed(networks, "::ffff:10.1.2.3")


async def test_the_default_project_stays_and_names_are_taken_once(
    database: Database, acme: TenantRecord, cli: Grantor
) -> None:
    await project(database, cli, acme, "web")
    with pytest.raises(ProjectExists):
        await project(database, cli, acme, "web")
    async with database.session() as session:
        other = await directory.create(session, "other", cli.act.at, secrets.token_bytes)
    await project(database, cli, other, "web")
    async with database.session() as session:
        with pytest.raises(ProjectProtected):
            await projects.rename(session, cli, acme.id, "default", "main")
        with pytest.raises(ProjectProtected):
            await projects.set_status(session, cli, acme.id, "default", "archived")
    async with database.session() as session:
        assert (await projects.rename(session, cli, acme.id, "web", "shop")).name == "shop"
        with pytest.raises(ProjectExists):
            await projects.rename(session, cli, acme.id, "shop", "default")


async def test_keys_and_projects_of_others_are_as_if_they_were_not(
    database: Database, acme: TenantRecord, cli: Grantor, now: datetime
) -> None:
    async with database.session() as session:
        other = await directory.create(session, "other", now, secrets.token_bytes)
    theirs = await project(database, cli, other, "theirs")
    key = await made(database, cli, other, NewKey("", "theirs"))
    mine = await made(database, cli, acme, NewKey())
    for named in ("theirs", theirs.id):
        for attempt in (
            made(database, cli, acme, NewKey("", named)),
            changed(database, cli, acme, mine.key_id, KeyChange(project=named)),
        ):
            with pytest.raises(ProjectNotFound):
                await attempt
    for attempt in (
        rotated(database, cli, acme, key.key_id),
        changed(database, cli, acme, key.key_id, KeyChange(label="x")),
    ):
        with pytest.raises(KeyNotFound):
            await attempt


async def test_a_limit_that_two_set_first_is_set_by_both(
    database: Database, acme: TenantRecord, cli: Grantor
) -> None:
    of_tenant = LimitOwner(acme.id, "tenant", acme.id)

    async def put(value: int) -> None:
        async with database.session() as session:
            wanted = NewLimit(value)
            await limit_changes.put(session, cli, of_tenant, "concurrency", wanted, DEFAULTS)

    await asyncio.gather(*map(put, range(1, 7)))
    async with database.reader() as session:
        (stored,) = await limit_changes.list_limits(session, acme.id)
        events = await find_events(session, AuditFilter(action="limit.set"), 10)
    assert [event.detail["from"] is None for event in events] == [False] * 5 + [True]
    told = [(event.detail["from"] or {}).get("value") for event in events]  # type: ignore[attr-defined]  # wrong on purpose, or replaced for the test
    values = [event.detail["to"]["value"] for event in events]  # type: ignore[index]  # wrong on purpose, or replaced for the test
    assert values[0] == stored.limit.value
    assert told[:-1] == values[1:]  # each found what the one before it left


async def test_of_two_changes_of_a_key_at_once_none_is_undone(
    database: Database, acme: TenantRecord, cli: Grantor
) -> None:
    key = await made(database, cli, acme, NewKey("k", scopes=KeyScopes(models=("tiny", "acme/a"))))

    async def change(wanted: KeyChange) -> None:
        async with database.session() as session:
            await api_keys.get_key(session, acme.id, key.key_id)
            await both.wait()
            await key_changes.change(session, cli, acme.id, key.key_id, wanted)

    both = asyncio.Barrier(2 if database.url.get_backend_name() != "sqlite" else 1)
    await asyncio.gather(
        change(KeyChange(scopes={"models": ["tiny"]})),
        change(KeyChange(label="new")),
    )
    async with database.reader() as session:
        found = await api_keys.get_key(session, acme.id, key.key_id)
    assert (found.label, found.scopes.models) == ("new", ("tiny",))


async def test_requests_of_a_key_go_on_while_somebody_changes_it(
    postgres_only: Database, acme: TenantRecord, cli: Grantor
) -> None:
    database = postgres_only
    key = await made(database, cli, acme, NewKey())
    # What a row that points at the key asks for, as an intent does.
    pointing = sqlalchemy.text("SELECT 1 FROM api_key WHERE id = :id FOR KEY SHARE NOWAIT")
    async with database.session() as changing:
        await key_changes.change(changing, cli, acme.id, key.key_id, KeyChange(label="slow"))
        async with database.session() as session:
            assert await session.scalar(pointing, {"id": key.key_id}) == 1


async def test_what_is_done_to_keys_is_told_without_them(
    database: Database, acme: TenantRecord, cli: Grantor
) -> None:
    await project(database, cli, acme, "web")
    key = await made(database, cli, acme, NewKey("old"))
    await changed(database, cli, acme, key.key_id, KeyChange("new", "web"))
    again = await rotated(database, cli, acme, key.key_id)
    async with database.session() as session:
        await key_changes.revoke(session, cli.act, acme.id, key.key_id)
        await key_changes.revoke(session, cli.act, acme.id, key.key_id)
    async with database.reader() as session:
        events = await find_events(session, AuditFilter(action="key"), 10)
    actions = [event.action for event in reversed(events)]
    assert actions == ["key.create", "key.change", "key.rotate", "key.revoke"]
    assert events[2].detail == {
        "label": {"from": "old", "to": "new"},
        "project": {"from": "default", "to": "web"},
    }
    told = repr(events)
    for text in (key.text, again.text):
        assert text.split("_")[2] not in told


def test_addresses_are_allowed_by_either_family() -> None:
    assert address_allowed(None, None)
    assert address_allowed((ip_network("0.0.0.0/0"),), "1.2.3.4")
    assert not address_allowed((ip_network("0.0.0.0/0"),), "::1")


async def test_of_those_who_set_one_limit_at_once_all_are_told_that_it_holds(
    database: Database, acme: TenantRecord, cli: Grantor
) -> None:
    owner = LimitOwner(acme.id, "tenant", acme.id)

    async def put(value: int) -> None:
        async with database.session() as session:
            wanted = NewLimit(value)
            await limit_changes.put(session, cli, owner, "tokens_per_month", wanted, DEFAULTS)

    await asyncio.gather(*map(put, range(1, 9)))
    async with database.reader() as session:
        (held,) = await limit_changes.list_limits(session, acme.id, owner)
        told = await find_events(session, AuditFilter(acme.id, "limit.set"), 100)
    changes = [event.detail for event in told]
    assert sum(change["from"] is None for change in changes) == 1
    assert changes[0]["to"]["value"] == held.limit.value
