"""Keys and projects made and changed, each in a transaction of its own."""

import secrets
from datetime import datetime, timedelta

from loraplex.tenants import api_keys, key_changes, projects, stored_keys
from loraplex.tenants.api_keys import Principal
from loraplex.tenants.audit import Act, Actor
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.key_changes import KeyChange, NewKey
from loraplex.tenants.key_scopes import Grantor
from loraplex.tenants.key_text import MintedKey

PEPPER = b"p" * 32
DAY = timedelta(days=1)


async def made(
    database: Database, grantor: Grantor, tenant: TenantRecord, wanted: NewKey
) -> MintedKey:
    async with database.session() as session:
        return await key_changes.create(
            session, grantor, tenant, wanted, PEPPER, secrets.token_bytes
        )


async def changed(
    database: Database, grantor: Grantor, tenant: TenantRecord, key_id: str, wanted: KeyChange
) -> api_keys.KeyRecord:
    async with database.session() as session:
        return await key_changes.change(session, grantor, tenant.id, key_id, wanted)


async def rotated(
    database: Database, grantor: Grantor, tenant: TenantRecord, key_id: str, grace: timedelta = DAY
) -> MintedKey:
    async with database.session() as session:
        return await key_changes.rotate(
            session, grantor, tenant.id, key_id, grace, PEPPER, secrets.token_bytes
        )


async def project(
    database: Database, grantor: Grantor, tenant: TenantRecord, name: str, *models: str
) -> projects.ProjectRecord:
    async with database.session() as session:
        return await projects.create(
            session, grantor, tenant.id, name, models or None, secrets.token_bytes
        )


async def opens(database: Database, text: str, at: datetime) -> Principal:
    async with database.reader() as session:
        return await stored_keys.verify(session, text, PEPPER, at)


async def grantor_of(database: Database, text: str, at: datetime) -> Grantor:
    principal = await opens(database, text, at)
    return principal.as_grantor(Act(Actor("api_key", principal.key_id), at))
