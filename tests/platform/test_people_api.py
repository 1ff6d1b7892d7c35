"""People and members over REST: who may change whom, and what each side sees."""

import httpx
import pytest
from tests.platform.conftest import NOW, PEPPER, Gateway

from loraplex.tenants import admin_keys, key_changes
from loraplex.tenants.audit import CLI, Act, AuditFilter, find_events
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.key_changes import NewKey
from loraplex.tenants.key_scopes import KeyScopes, of_platform

ACT = Act(CLI, NOW)


async def operator(gateway: Gateway, role: str) -> dict[str, str]:
    resources = gateway.resources
    async with resources.database.session() as session:
        key = await admin_keys.create(session, ACT, role, role, PEPPER, resources.entropy)
    return {"authorization": f"Bearer {key.text}"}


async def tenant_admin(gateway: Gateway, tenant: TenantRecord) -> dict[str, str]:
    resources, wanted = gateway.resources, NewKey(scopes=KeyScopes(role="tenant_admin"))
    async with resources.database.session() as session:
        key = await key_changes.create(
            session, of_platform(ACT), tenant, wanted, PEPPER, resources.entropy
        )
    return {"authorization": f"Bearer {key.text}"}


async def add(client: httpx.AsyncClient, headers: dict[str, str], email: str) -> str:
    answer = await client.post("/admin/v1/people", json={"email": email}, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def test_a_person_is_added_once_though_the_request_is_sent_twice(gateway: Gateway) -> None:
    headers = await operator(gateway, "owner") | {"idempotency-key": "one"}
    first, again = [await add(gateway.client, headers, "ada@example.org") for _ in range(2)]
    assert first == again
    del headers["idempotency-key"]
    answer = await gateway.client.post(
        "/admin/v1/people", json={"email": "ADA@example.org"}, headers=headers
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "person_exists")


async def test_an_operator_changes_people_but_none_of_the_platforms_own(gateway: Gateway) -> None:
    client = gateway.client
    owner, lesser = await operator(gateway, "owner"), await operator(gateway, "operator")
    ada = f"/admin/v1/people/{await add(client, lesser, 'ada@example.org')}"
    password = {"password": "correct horse battery"}
    in_tenant = {"role": "developer", "tenant": gateway.tenant.name}
    for method, path, body in (
        ("PUT", "/password", password),
        ("POST", "/roles", in_tenant),
        ("PATCH", "", {"status": "disabled"}),
        ("PATCH", "", {"status": "active"}),
        ("POST", "/sign-out", None),
    ):
        answer = await client.request(method, ada + path, json=body, headers=lesser)
        assert answer.status_code == 200, answer.text
        assert "correct horse" not in answer.text
    answer = await client.post(f"{ada}/roles", json={"role": "finance"}, headers=lesser)
    assert (answer.status_code, answer.json()["code"]) == (403, "insufficient_scope")
    answer = await client.post(f"{ada}/roles", json={"role": "owner"}, headers=owner)
    assert [(r["role"], r["tenant"]) for r in answer.json()["roles"]] == [
        ("owner", None),
        ("developer", gateway.tenant.name),
    ]
    for method, path, body in (
        ("PUT", "/password", password),
        ("PATCH", "", {"status": "disabled"}),
        ("POST", "/sign-out", None),
        ("POST", "/roles", {"role": None}),
    ):
        answer = await client.request(method, ada + path, json=body, headers=lesser)
        assert answer.status_code == 403, (method, path)
    answer = await client.patch(ada, json={"status": "disabled"}, headers=owner)
    assert (answer.status_code, answer.json()["code"]) == (409, "last_owner")


async def test_a_password_is_in_no_error(gateway: Gateway) -> None:
    headers = await operator(gateway, "owner")
    person = await add(gateway.client, headers, "ada@example.org")
    for value in ("hunter2", 31337, {"a": "hunter2"}):
        answer = await gateway.client.put(
            f"/admin/v1/people/{person}/password", json={"password": value}, headers=headers
        )
        assert answer.status_code == 400
        assert not {"hunter2", "31337"} & set(answer.text.replace('"', " ").split())


async def test_a_tenants_admin_manages_its_members_and_nobody_elses(gateway: Gateway) -> None:
    client, path = gateway.client, "/v1/members"
    other, _ = await gateway.make_tenant("other")
    mine, theirs = await tenant_admin(gateway, gateway.tenant), await tenant_admin(gateway, other)
    body = {"email": "ada@example.org", "role": "developer"}
    added = (await client.post(path, json=body, headers=mine)).json()
    assert added | {"since": None} == {
        "id": added["id"],
        "object": "member",
        "email": "ada@example.org",
        "role": "developer",
        "since": None,
    }
    known = (await client.post(path, json=body, headers=theirs)).json()
    assert known | {"since": None} == added | {"since": None}  # nothing of who knows her as well
    assert (await client.delete(f"{path}/{known['id']}", headers=theirs)).status_code == 200
    ada = f"{path}/{added['id']}"
    assert (await client.get(path, headers=theirs)).json()["data"] == []
    for method, content in (("GET", None), ("PATCH", {"role": "read_only"}), ("DELETE", None)):
        answer = await client.request(method, ada, json=content, headers=theirs)
        assert answer.status_code == 404, method
        assert answer.json()["error"]["code"] == "membership_not_found"
    answer = await client.patch(ada, json={"role": "owner"}, headers=mine)
    assert answer.json()["error"]["param"] == "role"
    answer = await client.patch(ada, json={"role": "tenant_admin"}, headers=mine)
    assert answer.json()["role"] == "tenant_admin"
    assert (await client.delete(ada, headers=mine)).json()["deleted"] is True
    async with gateway.resources.database.reader() as session:
        events = await find_events(session, AuditFilter(gateway.tenant.id, "member"), 10)
    assert [event.action for event in events] == ["member.revoke", "member.grant", "member.grant"]


@pytest.mark.parametrize("role", ["developer", "read_only"])
async def test_a_key_of_a_lesser_role_reads_no_members_or_changes_none(
    role: str, gateway: Gateway
) -> None:
    resources, wanted = gateway.resources, NewKey(scopes=KeyScopes(role=role))
    async with resources.database.session() as session:
        key = await key_changes.create(
            session, of_platform(ACT), gateway.tenant, wanted, PEPPER, resources.entropy
        )
    headers = {"authorization": f"Bearer {key.text}"}
    reads = await gateway.client.get("/v1/members", headers=headers)
    assert reads.status_code == (200 if role == "read_only" else 403)
    body = {"email": "ada@example.org", "role": "developer"}
    assert (await gateway.client.post("/v1/members", json=body, headers=headers)).status_code == 403
