"""What each role sees and may do in the console: declared per route, checked in one way."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from fastapi.dependencies.models import Dependant
from fastapi.routing import RouteContext, iter_route_contexts
from tests.console.platform import PEPPER, ConsolePlatform, console_platform

from loraplex.platform.console.access import session_of
from loraplex.platform.console.permissions import Inside, OnPlatform
from loraplex.platform.console.router import router
from loraplex.tenants import directory, key_changes, memberships, people
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.key_changes import NewKey
from loraplex.tenants.key_scopes import of_person, of_platform
from loraplex.tenants.roles import PLATFORM_GRANTS, TENANT_GRANTS

OPEN = {
    "/console/static/{name}",
    "/console/sign-in",
    "/console/sign-in/oidc",
    "/console/sign-in/oidc/callback",
}
FOR_ANYBODY = {
    "/console",
    "/console/tenants",
    "/console/account",
    "/console/account/sessions/{session_id}/end",
    "/console/account/sign-out",
    "/console/account/password",
    "/console/sign-out",
    "/console/{path:path}",
}
"""Whoever is signed in; what they show there is their own."""


def all_routes() -> list[RouteContext]:
    return [route for route in iter_route_contexts(router.routes) if route.path != "/"]


def calls(dependant: Dependant) -> Iterator[object]:
    yield dependant.call
    for below in dependant.dependencies:
        yield from calls(below)


def needs_of(route: RouteContext) -> list[Inside | OnPlatform]:
    return [c for c in calls(route.dependant) if isinstance(c, Inside | OnPlatform)]


ROUTES = [(method, r.path, needs_of(r)) for r in all_routes() for method in sorted(r.methods)]


def test_every_route_declares_one_permission_or_is_for_anybody() -> None:
    assert len(ROUTES) > 45
    for route in all_routes():
        needs, signed_in = needs_of(route), session_of in set(calls(route.dependant))
        if route.path in OPEN:
            assert not signed_in, route.path
        elif route.path in FOR_ANYBODY and not needs:
            assert signed_in, route.path
        else:
            assert len(needs) == 1, route.path
            assert isinstance(needs[0], Inside) == ("/tenants/{name}" in route.path), route.path


class World:
    """Two tenants, one key in each, and people of all roles in the first."""

    def __init__(self, platform: ConsolePlatform) -> None:
        self.platform = platform
        self.key_ids: dict[str, str] = {}
        self.people: dict[str, str] = {}

    async def fill(self) -> None:
        resources = self.platform.resources
        act = Act(CLI, resources.now())
        async with resources.database.session() as session:
            for name in ("acme", "globex"):
                tenant = await directory.create(session, name, resources.now(), resources.entropy)
                key = await key_changes.create(
                    session, of_platform(act), tenant, NewKey(name), PEPPER, resources.entropy
                )
                self.key_ids[name] = key.key_id
                for role in ("tenant_admin", "developer", "read_only"):
                    if name == "acme":
                        self.people[role] = await self._person(session, act, role, tenant.id)
            for role in ("owner", "operator", "finance", "read_only"):
                self.people[f"platform {role}"] = await self._person(session, act, role, None)

    async def _person(self, session: object, act: Act, role: str, tenant_id: str | None) -> str:
        entropy = self.platform.resources.entropy
        place = "acme" if tenant_id else "platform"
        person = await people.add(session, act, f"{role}@{place}.example", "", entropy)
        await memberships.grant(session, act, person.id, role, tenant_id, entropy)
        return person.id

    async def client(self, role: str) -> httpx.AsyncClient:
        cookie = await self.platform.open_session(self.people[role])
        return httpx.AsyncClient(
            base_url=self.platform.root,
            headers={"sec-fetch-site": "same-origin"},
            cookies={"lpx_session": cookie},
        )

    def url(self, path: str, tenant: str = "acme") -> str:
        values = {
            "name": tenant,
            "key_id": self.key_ids[tenant],
            "project": "default",
            "person_id": self.people["developer"],
        }
        return re.sub(r"{(\w+)}", lambda match: values.get(match[1], "1"), path)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("roles")
    async with console_platform(folder, lifespan=False, migrated=migrated) as running:
        made = World(running)
        await made.fill()
        yield made


async def csrf(client: httpx.AsyncClient) -> str:
    page = await client.get("/console/account")
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', page.text)
    assert found, page.text
    return found[1]


async def test_another_tenants_pages_and_forms_are_not_there(world: World) -> None:
    async with await world.client("tenant_admin") as client:
        token = await csrf(client)
        for method, path, needs in ROUTES:
            if needs and isinstance(needs[0], Inside):
                url = world.url(path, "globex")
                answer = await client.request(method, url, data={"csrf": token})
                assert answer.status_code == 404, (method, url)
                nowhere = await client.request(method, world.url(path).replace("acme", "nobody"))
                assert nowhere.status_code == 404
        assert "globex" not in (await client.get("/console/tenants")).text


@pytest.mark.parametrize(
    "role",
    ["developer", "read_only", "tenant_admin", "platform finance", "platform read_only"],
)
async def test_what_a_role_may_not_do_is_refused_and_has_no_button(role: str, world: World) -> None:
    async with await world.client(role) as client:
        session = await world.platform.app.state.console.find_session(client.cookies["lpx_session"])
        async with world.platform.resources.database.reader() as reader:
            acme = await directory.get_by_name(reader, "acme")
        actions, form = set(), {"csrf": await csrf(client)}
        for method, path, needs in ROUTES:
            if not needs or method not in {"GET", "POST"}:
                continue
            inside = acme.id if isinstance(needs[0], Inside) else None
            allowed = [needs[0].needed, getattr(needs[0], "or_else", None)]
            may = any(session.may(one, inside) for one in allowed if one)
            if method == "GET":
                answer = await client.get(world.url(path))
                assert (answer.status_code != 403) == may, path
                actions |= set(re.findall(r'action="([^"]+)"', answer.text))
            elif not may:
                answer = await client.post(world.url(path), data=form)
                assert answer.status_code == 403, path
        forbidden = {
            world.url(path)
            for method, path, needs in ROUTES
            if method == "POST"
            and needs
            and not session.may(needs[0].needed, acme.id if isinstance(needs[0], Inside) else None)
        }
        assert actions & forbidden == set()


async def test_a_tenants_admin_adds_a_member_who_then_sees_the_tenant(world: World) -> None:
    async with await world.client("tenant_admin") as client:
        form = {"csrf": await csrf(client), "email": "New@acme.example", "role": "read_only"}
        answer = await client.post("/console/tenants/acme/members", data=form)
        assert answer.status_code == 303
        page = await client.get("/console/tenants/acme/members")
        assert "new@acme.example is read_only now" in page.text
        page = await client.get("/console/tenants/acme/members")
        assert "is read_only now" not in page.text, "a notice is shown once"
        audit = await client.get("/console/tenants/acme/audit")
        assert "tenant_admin@acme.example" in audit.text
        assert "member.grant" in audit.text
    async with world.platform.resources.database.reader() as session:
        world.people["new"] = (await people.get_by_email(session, "new@acme.example")).id
    async with await world.client("new") as client:
        assert (await client.get("/console")).headers["location"] == "/console/tenants"
        assert (await client.get("/console/tenants/acme")).status_code == 200


async def test_roles_on_the_platform_and_in_a_tenant_add_up(world: World) -> None:
    resources = world.platform.resources
    act = Act(CLI, resources.now())
    async with resources.database.session() as session:
        acme = await directory.get_by_name(session, "acme")
        both = await people.add(session, act, "both@acme.example", "", resources.entropy)
        for role, place in (("operator", None), ("read_only", acme.id)):
            await memberships.grant(session, act, both.id, role, place, resources.entropy)
    world.people["both"] = both.id
    async with await world.client("both") as client:
        form = {"csrf": await csrf(client), "role": "tenant_admin"}
        made = await client.post("/console/tenants/acme/keys", data=form)
    assert made.status_code == 200
    for platform, inside in (("finance", "developer"), ("read_only", "tenant_admin")):
        given = of_person(act, PLATFORM_GRANTS[platform], TENANT_GRANTS[inside]).permissions
        assert given == TENANT_GRANTS[inside] | (
            PLATFORM_GRANTS[platform] & TENANT_GRANTS["tenant_admin"]
        )


async def test_a_new_secret_is_on_the_answer_and_nowhere_in_the_database(world: World) -> None:
    async with await world.client("tenant_admin") as client:
        form = {"csrf": await csrf(client), "label": "ci", "project": "default"}
        form |= {"role": "developer", "models": "acme/a, acme/b@2", "addresses": "10.0.0.0/8"}
        made = await client.post("/console/tenants/acme/keys", data=form | {"expires": "30"})
        assert made.status_code == 200
        assert made.headers["cache-control"] == "no-store"
        (key,) = re.findall(r'value="(lpx_[^"]+)"', made.text)
        rotate = f"/console/tenants/acme/keys/{world.key_ids['acme']}/rotate"
        rotated = await client.post(rotate, data={"csrf": form["csrf"], "grace": "3600"})
        (other,) = re.findall(r'value="(lpx_[^"]+)"', rotated.text)
        assert other.split("_")[1] == world.key_ids["acme"]
        assert "old secret until" in rotated.text
        assert "End it now" in (await client.get(rotate)).text
        end = rotate.replace("/rotate", "/revoke-previous")
        await client.post(end, data={"csrf": form["csrf"]})
        assert "End it now" not in (await client.get(rotate)).text
        assert "lpx_session" not in rotated.headers.get("set-cookie", "")
        for field, value in (("addresses", "here"), ("models", "acme/a:prod"), ("project", "x")):
            bad = await client.post(
                "/console/tenants/acme/keys", data=form | {"expires": "", field: value}
            )
            assert bad.status_code == 400
            assert f'id="{field}-error"' in bad.text
    file = world.platform.resources.settings.database_path
    data = b"".join(p.read_bytes() for p in file.parent.glob(file.name + "*"))
    for text in (key, other):
        assert text.split("_")[1].encode() in data
        assert text.split("_")[2].encode() not in data


async def test_an_owner_gives_roles_and_keeps_the_last_owner(world: World) -> None:
    async with await world.client("platform owner") as client:
        me = f"/console/people/{world.people['platform owner']}"
        form = {"csrf": await csrf(client)}
        answer = await client.post(f"{me}/status", data=form | {"status": "disabled"})
        assert answer.status_code == 400
        assert "only one who owns" in answer.text
        bad = await client.post(f"{me}/roles", data=form | {"role": "king", "tenant": ""})
        assert bad.status_code == 400
        other = f"/console/people/{world.people['platform finance']}"
        answer = await client.post(f"{other}/roles", data=form | {"role": "", "tenant": ""})
        assert answer.status_code == 303
        assert "sees nothing" in (await client.get(other)).text
        await client.post(f"{other}/roles", data=form | {"role": "finance", "tenant": ""})
        chain = await client.get("/console/audit?check=true")
        assert "each follows from the one before it" in chain.text


async def test_an_operator_changes_nobody_who_has_a_platform_role(world: World) -> None:
    async with await world.client("platform operator") as client:
        owner = f"/console/people/{world.people['platform owner']}"
        form = {"csrf": await csrf(client), "password": "correct horse battery", "role": "owner"}
        for path in ("password", "status", "sign-out", "roles"):
            answer = await client.post(f"{owner}/{path}", data=form | {"tenant": ""})
            assert answer.status_code == 403, path
        page = await client.get(owner)
        assert "Set the password" not in page.text


async def test_who_may_not_is_told_where_that_is_and_who_they_are(world: World) -> None:
    async with await world.client("developer") as client:
        page = (await client.get("/console/people")).text
        assert "of the platform needs the permission people.read" in page
        assert "which developer@acme.example does not have" in page
        page = (await client.get("/console/tenants/acme/members")).text
        assert "of the tenant acme needs" in page
        assert "an administrator of acme" in page


async def test_one_signs_out_elsewhere_and_everywhere(world: World) -> None:
    async with await world.client("developer") as here, await world.client("developer") as there:
        page = await here.get("/console/account")
        form = {"csrf": await csrf(here)}
        for path in re.findall(r'action="(/console/account/sessions/\w+/end)"', page.text):
            assert (await here.post(path, data=form)).status_code == 303
        assert (await here.get("/console/account")).status_code == 200
        assert (await there.get("/console/account")).status_code == 303
        async with await world.client("developer") as third:
            await here.post("/console/account/sign-out", data=form)
            for client in (here, third):
                assert (await client.get("/console/account")).status_code == 303


async def test_one_changes_the_password_by_the_one_before(world: World) -> None:
    resources = world.platform.resources
    passwords = world.platform.app.state.services.passwords
    hashed = await passwords.hash("correct horse battery")
    async with resources.database.session() as session:
        act = Act(CLI, resources.now())
        await people.set_password(session, act, world.people["read_only"], hashed)
    async with await world.client("read_only") as client:
        form = {"csrf": await csrf(client), "password": "another long password"}
        bad = await client.post("/console/account/password", data=form | {"current": "wrong"})
        assert bad.status_code == 400
        assert "not your password" in bad.text
        form["current"] = "correct horse battery"
        assert (await client.post("/console/account/password", data=form)).status_code == 303
        assert (await client.get("/console/account")).status_code == 303
    sign_in = {"email": "read_only@acme.example", "password": "another long password"}
    async with httpx.AsyncClient(
        base_url=world.platform.root, headers={"sec-fetch-site": "same-origin"}
    ) as client:
        assert (await client.post("/console/sign-in", data=sign_in)).status_code == 303
