"""The end of a tenant: what it had goes, what it owes stays, its name is free."""

from pathlib import Path

import httpx
import pytest
from sqlalchemy import select
from tests.adapters import build
from tests.platform.conftest import NOW, Gateway
from tests.platform.shell import Shell
from tests.platform.test_adapter_deletions import begin
from tests.platform.test_uploads import upload

from loraplex.adapters.registry import tenant_deletion
from loraplex.tenants import audit
from loraplex.tenants.audit import Act
from loraplex.tenants.columns import Base
from loraplex.tenants.people_tables import ConsoleSession, MembershipRow, PersonRow
from loraplex.tenants.tables import Tenant

EMAIL = "canary-person@example.com"
LABEL = "canary-label"


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


async def fill(gateway: Gateway, admin: httpx.AsyncClient, tmp_path: Path) -> None:
    """Give a tenant one of everything."""
    assert (await upload(gateway, build.save(tmp_path / "mine"))).status_code == 201
    files = {"adapter_config.json": 10, "adapter_model.safetensors": 10}
    announced = {"name": LABEL, "files": files}
    assert (await gateway.client.post("/v1/adapters/uploads", json=announced)).status_code == 201
    made = await admin.post("/tenants/acme/keys", json={"label": LABEL})
    assert made.status_code == 201
    limits = {"limits": {"requests_per_minute": 600}}
    assert (await admin.patch("/tenants/acme", json=limits)).status_code == 200
    person = PersonRow(id="psn_1", email=EMAIL, name=EMAIL, status="active", created_at=NOW)
    member = MembershipRow(
        id="mbr_1", person_id="psn_1", tenant_id=gateway.tenant.id, role="developer", created_at=NOW
    )
    cookie = ConsoleSession(
        cookie_hash="c",
        person_id="psn_1",
        csrf="",
        user_agent="",
        started_at=NOW,
        seen_at=NOW,
        ends_at=NOW,
    )
    async with gateway.resources.database.session() as session:
        session.add(person)
        await session.flush()
        session.add_all([member, cookie])


async def told_of(gateway: Gateway) -> str:
    """All that tables say, but for the ledger and the audit log, which never change."""
    said = []
    async with gateway.resources.database.reader() as session:
        for table in Base.metadata.sorted_tables:
            if table.name not in {"usage", "audit_event"}:
                said += [str(tuple(row)) for row in await session.execute(select(table))]
    return "\n".join(said)


async def sweep(gateway: Gateway) -> None:
    """What a gateway does every few seconds."""
    await gateway.services.tenant_deletions.sweep()
    await gateway.services.adapter_deletions.sweep()
    await gateway.resources.adapter_bytes.settled()
    await gateway.services.tenant_deletions.sweep()


async def status(gateway: Gateway) -> str:
    async with gateway.resources.database.reader() as session:
        return (await session.get_one(Tenant, gateway.tenant.id)).status


async def test_a_deleted_tenant_leaves_nothing_but_what_it_used_and_what_was_done(
    gateway: Gateway, admin: httpx.AsyncClient, tmp_path: Path
) -> None:
    await fill(gateway, admin, tmp_path)
    request_id, asked = await begin(gateway)
    gateway.engine.emit(request_id, "half")
    once = {"idempotency-key": "once"}

    answer = await admin.delete("/tenants/acme", headers=once)

    assert (answer.status_code, answer.json()["status"]) == (202, "deleting")
    assert (await gateway.chat()).status_code in {401, 403}
    await sweep(gateway)
    assert (await asked).status_code == 409, "what ran is broken off"
    await gateway.assert_all_settled()
    await sweep(gateway)
    assert await status(gateway) == "deleted"
    said = await told_of(gateway)
    assert [word for word in ("'acme'", EMAIL, LABEL) if word in said] == []
    assert [row.completion_tokens for row in await gateway.usage()] == [1]
    assert not [*(tmp_path / "adapters").glob("??/*")]
    events = (await admin.get("/audit", params={"tenant": gateway.tenant.id})).json()["data"]
    actions = [event["action"] for event in events]
    assert {"tenant.delete", "tenant.deleted"} <= set(actions)
    again = await admin.delete("/tenants/acme", headers=once)
    assert (again.status_code, again.headers["idempotent-replayed"]) == (202, "true")
    assert (await admin.delete("/tenants/acme")).status_code == 404
    shown = (await admin.get(f"/tenants/{gateway.tenant.id}")).json()
    assert (shown["name"], shown["status"]) == (gateway.tenant.id, "deleted")
    namesake = (await admin.post("/tenants", json={"name": "acme"})).json()
    assert namesake["id"] != gateway.tenant.id


async def test_another_process_finishes_what_a_killed_one_began(
    gateway: Gateway, admin: httpx.AsyncClient, tmp_path: Path
) -> None:
    await fill(gateway, admin, tmp_path)
    async with gateway.resources.database.session() as session:
        await tenant_deletion.begin(session, Act(audit.CLI, NOW), gateway.tenant.id)
    refused = [
        await admin.post("/tenants/acme/resume"),
        await admin.post("/tenants/acme/suspend"),
        await upload(gateway, tmp_path / "mine"),
    ]
    assert [answer.status_code >= 400 for answer in refused] == [True] * 3
    await sweep(gateway)
    assert await status(gateway) == "deleted"


def test_the_command_asks_for_the_name_twice_and_finishes_where_no_gateway_runs(
    tmp_path: Path, database_url: str
) -> None:
    shell = Shell(tmp_path, database_url)
    shell.out("tenant", "create", "acme")
    delete = ("tenant", "delete", "acme", "--confirm")
    assert "nothing was deleted" in shell.failure(*delete, "globex")
    assert shell.out(*delete, "acme") == "Deleted tenant acme.\n"
    assert "no tenant 'acme'" in shell.failure(*delete, "acme")
