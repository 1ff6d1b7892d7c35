"""The audit log: what is done is told with it, and read by whose and by what."""

from datetime import datetime, timedelta

import pytest

from loraplex.tenants import audit
from loraplex.tenants.audit import Act, Actor, AuditFilter, find_events
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.roles import TENANT_GRANTS, Permissions

DONE = (
    ("adapter.publish", "acme/support@1"),
    ("adapter.alias.point", "acme/support:prod"),
    ("adapter.alias.canary", "acme/support:prod"),
    ("adapter.aliased", "acme/support-2@1"),
)


@pytest.fixture
async def told(database: Database, acme: TenantRecord, now: datetime) -> Database:
    """A log with some events, a second apart."""
    async with database.session() as session:
        for i, (action, subject) in enumerate(DONE):
            act = Act(Actor("api_key", "key_1"), now + timedelta(seconds=i))
            await audit.append(session, act, acme.id, action, subject, {"i": i})
        await audit.append(session, Act(audit.CLI, now), None, "platform.start", "platform")
    return database


async def found(database: Database, limit: int = 100, after: str | None = None, **wanted: object):
    async with database.reader() as session:
        return await find_events(session, AuditFilter(**wanted), limit, after)


async def test_events_are_listed_newest_first_with_what_was_told(
    told: Database, acme: TenantRecord
) -> None:
    events = await found(told, tenant_id=acme.id)
    assert [(event.action, event.subject) for event in events] == list(reversed(DONE))
    assert [event.detail for event in events] == [{"i": i} for i in (3, 2, 1, 0)]
    assert {event.actor for event in events} == {"key_1"}
    assert len(await found(told)) == 5


async def test_a_page_goes_on_behind_the_last_event_of_the_one_before(told: Database) -> None:
    first = await found(told, limit=2)
    rest = await found(told, after=str(first[-1].id))
    assert [*first, *rest] == await found(told)


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        ({"action": "adapter.alias"}, 2),
        ({"action": "adapter.alias.point"}, 1),
        ({"action": "adapter"}, 4),
        ({"subject": "acme/support"}, 3),
        ({"subject": "acme/support:prod"}, 2),
        ({"action": "adapter_alias"}, 0),
        ({"subject": "acme/%"}, 0),
    ],
)
async def test_events_are_found_by_whole_parts_of_what_and_to_what(
    told: Database, wanted: dict[str, str], number: int
) -> None:
    assert len(await found(told, **wanted)) == number


async def test_events_are_found_by_time(told: Database, now: datetime) -> None:
    since, until = now + timedelta(seconds=1), now + timedelta(seconds=3)
    events = await found(told, since=since, until=until)
    assert [event.detail["i"] for event in events] == [2, 1]


@pytest.mark.parametrize("after", ["", "x", "-1", "1.5", str(2**63), "٣"])
async def test_what_is_no_id_of_an_event_is_refused(told: Database, after: str) -> None:
    with pytest.raises(ValueRefused, match="after"):
        await found(told, after=after)


async def test_of_keys_and_people_those_hear_who_may_read_them(
    told: Database, acme: TenantRecord, now: datetime
) -> None:
    act = Act(Actor("person", "psn_1"), now)
    async with told.session() as session:
        for action in ("key.create", "member.grant", "limit.set"):
            await audit.append(session, act, acme.id, action, "someone", {"label": "secret"})

    async def heard(reader: Permissions) -> set[tuple[str, str]]:
        events = await found(told, tenant_id=acme.id, reader=reader)
        return {(e.action, e.actor) for e in events if e.actor_kind == "person"}

    assert await heard(TENANT_GRANTS["developer"]) == {("limit.set", "person")}
    assert len(await heard(TENANT_GRANTS["read_only"])) == 3
    keys_alone: Permissions = frozenset(("audit.read", "keys.read"))
    assert await heard(keys_alone) == {("limit.set", "person"), ("key.create", "person")}
