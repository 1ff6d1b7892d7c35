"""Whoever locks several rows keeps the order of all others: nobody waits in a circle."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import event
from tests.tenants.open_intents import LEASE

from loraplex.tenants import api_keys, intents
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.erasure import erase
from loraplex.tenants.last_used import LastUsed
from loraplex.tenants.tables import Tenant


@contextmanager
def statements(database: Database) -> Iterator[list[tuple[str, str]]]:
    """What is sent to the database meanwhile: text and values."""
    sent: list[tuple[str, str]] = []

    def note(_c: object, _cursor: object, statement: str, values: object, *_: object) -> None:
        sent.append((statement, str(values)))

    engine = database._engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    yield sent
    event.remove(engine, "before_cursor_execute", note)


async def test_gateways_write_uses_of_the_same_keys_in_the_same_order(
    database: Database, now: datetime
) -> None:
    last_used = LastUsed()
    for key_id in ("key_2", "key_3", "key_1"):
        last_used.note(key_id, now)
    with statements(database) as sent:
        await last_used.flush(database)
    updates = [values for text, values in sent if text.startswith("UPDATE")]
    assert [f"key_{n}" in values for n, values in zip("123", updates, strict=True)] == [True] * 3


async def test_a_tenants_keys_are_locked_before_the_catalogues_number_is_raised(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    async with database.session() as session:
        await api_keys.mint(session, acme, "", bytes(32), now, secrets.token_bytes)
    with statements(database) as sent:
        async with database.session() as session:
            await erase(session, await session.get_one(Tenant, acme.id), now)
    texts = [text for text, _ in sent if " api_key" in text or " limit_policy" in text]
    assert texts[0].startswith("SELECT api_key.id")
    assert "ORDER BY api_key.id" in texts[0]
    assert [text.split(maxsplit=1)[0] for text in texts] == ["SELECT", "DELETE", "DELETE", "UPDATE"]


async def test_intents_that_are_postponed_are_locked_in_the_order_of_those_that_are_renewed(
    database: Database, now: datetime
) -> None:
    with statements(database) as sent:
        async with database.session() as session:
            await intents.postpone(session, "gtw_a", ["b", "a"], now + LEASE)
    texts = [text for text, _ in sent if "request_id" in text]
    assert "ORDER BY usage_intent.request_id" in texts[0]
    assert texts[1].startswith("UPDATE")
