"""Whatever is done to projects and keys, in whatever order: no key exceeds its project or its role,
and one secret of each is current."""

import secrets
from dataclasses import asdict
from datetime import datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tenants.keys import PEPPER, changed, grantor_of, made, project, rotated

from loraplex.tenants import api_keys, directory, projects, stored_keys
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import (
    ExceedsParent,
    ProjectArchived,
    ProjectProtected,
    SelfWidening,
    TenantsError,
    ValueRefused,
)
from loraplex.tenants.key_changes import KeyChange, NewKey
from loraplex.tenants.key_scopes import Grantor, KeyScopes, of_platform
from loraplex.tenants.roles import TENANT_GRANTS

MODELS = st.one_of(
    st.none(), st.lists(st.sampled_from(["tiny", "acme/a", "acme/a@1", "acme/b"]), max_size=3)
)
ROLES = st.sampled_from(["tenant_admin", "developer", "read_only"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["project", "models", "archive", "restore", "key", "change", "rotate"]),
        st.integers(0, 3),
        st.integers(0, 3),
        MODELS,
        ROLES,
        st.booleans(),
    ),
    max_size=25,
)


class Tenancy:
    """A tenant that is changed at random, and what was shown of each key's secrets."""

    def __init__(self, database: Database, tenant: TenantRecord, cli: Grantor) -> None:
        self.database, self.tenant, self.cli = database, tenant, cli
        self.projects = ["default"]
        self.texts: dict[str, list[str]] = {}

    async def step(self, what: str, i: int, j: int, models: list[str] | None, role: str) -> None:
        tenant, cli = self.tenant, self.cli
        named = self.projects[i % len(self.projects)]
        allowed = None if models is None else tuple(models)
        scopes = KeyScopes(role, models=allowed)  # type: ignore[arg-type]  one of ROLES
        if what == "project":
            name = f"p{len(self.projects)}"
            await project(self.database, cli, tenant, name, *(models or ()))
            self.projects.append(name)
        elif what == "key":
            key = await made(
                self.database, await self.grantor(j), tenant, NewKey("", named, scopes)
            )
            self.texts[key.key_id] = [key.text]
        elif what in ("change", "rotate") and self.texts:
            key_id = list(self.texts)[i % len(self.texts)]
            grantor = await self.grantor(j)
            if what == "rotate":
                again = await rotated(self.database, grantor, tenant, key_id)
                self.texts[key_id].append(again.text)
            else:
                change = KeyChange(
                    project=self.projects[j % len(self.projects)], scopes=asdict(scopes)
                )
                await changed(self.database, grantor, tenant, key_id, change)
        else:
            async with self.database.session() as session:
                if what == "models":
                    await projects.set_models(session, cli, tenant.id, named, allowed)
                elif what in ("archive", "restore"):
                    status = "archived" if what == "archive" else "active"
                    await projects.set_status(session, cli, tenant.id, named, status)

    async def grantor(self, i: int) -> Grantor:
        """One of the keys where it opens, or the operator."""
        if i < len(self.texts):
            text = list(self.texts.values())[i][-1]
            try:
                return await grantor_of(self.database, text, self.cli.act.at)
            except TenantsError:
                pass
        return self.cli

    async def check(self) -> None:
        """Each key may at most what its role and its project may, and has one current secret."""
        at = self.cli.act.at
        async with self.database.reader() as session:
            records = {p.id: p for p in await projects.list_projects(session, self.tenant.id)}
            keys = await api_keys.list_keys(session, self.tenant.id)
            assert len(keys) == len(self.texts)
            for key in keys:
                assert key.scopes.granted <= TENANT_GRANTS[key.scopes.role]
                of = records[key.project_id]
                *old, previous, current = ["", *self.texts[key.key_id]]
                for text in old[1:]:
                    with pytest.raises(TenantsError):
                        await stored_keys.verify(session, text, PEPPER, at)
                if of.status == "archived":
                    with pytest.raises(ProjectArchived):
                        await stored_keys.verify(session, current, PEPPER, at)
                    continue
                principal = await stored_keys.verify(session, current, PEPPER, at)
                if previous:
                    await stored_keys.verify(session, previous, PEPPER, at)
                for model in ("tiny", "acme/a@1", "acme/a@2", "acme/b@1"):
                    in_project = of.models is None or {model, model[:6]} & set(of.models)
                    assert in_project or not principal.may_call(model)


@given(steps=STEPS)
@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
async def test_whatever_is_done_no_key_exceeds_its_project_and_one_secret_is_current(
    sqlite_url: str, now: datetime, steps: list[tuple]
) -> None:
    database = Database.open(sqlite_url)
    try:
        async with database.session() as session:
            name = f"t-{secrets.token_hex(8)}"
            tenant = await directory.create(session, name, now, secrets.token_bytes)
        tenancy = Tenancy(database, tenant, of_platform(Act(CLI, now)))
        for what, i, j, models, role, _ in steps:
            try:
                await tenancy.step(what, i, j, models, role)
            except (ExceedsParent, ProjectProtected, SelfWidening, ValueRefused):
                continue
        await tenancy.check()
    finally:
        await database.close()
