import re

import httpx
import pytest
from tests.console.platform import PEPPER, ConsolePlatform

from loraplex.platform.console.access import same_origin_path
from loraplex.tenants import admin_keys, api_keys, directory
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.console_sessions import IDLE, LONGEST

IDLE_S, SESSION_S = IDLE.total_seconds(), LONGEST.total_seconds()


async def sign_in(http: httpx.AsyncClient, key: str, **fields: str) -> httpx.Response:
    return await http.post("/console/sign-in", data={"key": key, **fields})


async def token(http: httpx.AsyncClient) -> str:
    page = await http.get("/console/tenants")
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', page.text)
    assert found
    return found[1]


@pytest.mark.parametrize(
    "path", ["/console", "/console/tenants", "/console/tenants/acme/keys", "/console/elsewhere"]
)
async def test_who_is_not_signed_in_is_led_to_the_sign_in_page_and_back(
    path: str, fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    answer = await http.get(path)
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        f"/console/sign-in?next={path}",
    )
    answer = await sign_in(http, fresh.admin_key, next=path)
    assert (answer.status_code, answer.headers["location"]) == (303, path)


async def test_a_script_without_a_session_is_told_by_the_status(http: httpx.AsyncClient) -> None:
    answer = await http.get("/console/overview/points", headers={"sec-fetch-mode": "cors"})
    assert answer.status_code == 401


async def test_a_tenants_key_does_not_open_the_console(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    resources = fresh.resources
    async with resources.database.session() as session:
        tenant = await directory.create(session, "acme", resources.now(), resources.entropy)
        key = await api_keys.mint(session, tenant, "", PEPPER, resources.now(), resources.entropy)
    answer = await sign_in(http, key.text)
    assert answer.status_code == 401
    assert key.text not in answer.text
    assert (await http.get("/console")).status_code == 303


async def test_an_address_that_tries_keys_has_to_wait_even_with_a_good_one(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    fresh.clock.fixed_s = 1e9
    for _ in range(5):
        assert (await sign_in(http, "lpxadm_wrong")).status_code == 401
    assert (await sign_in(http, fresh.admin_key)).status_code == 429
    fresh.clock.fixed_s += 60
    assert (await sign_in(http, fresh.admin_key)).status_code == 303


async def test_the_cookie_is_not_for_scripts_nor_for_other_sites(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    cookie = (await sign_in(http, fresh.admin_key)).headers["set-cookie"]
    assert cookie.startswith("lpx_session=")
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie


async def test_over_https_the_cookie_is_bound_to_its_host(fresh: ConsolePlatform) -> None:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(fresh.app),
        base_url="https://console.example",
        headers={"sec-fetch-site": "same-origin"},
    ) as https:
        cookie = (await sign_in(https, fresh.admin_key)).headers["set-cookie"]
        assert cookie.startswith("__Host-lpx_session=")
        assert "Secure" in cookie
        assert (await https.get("/console")).status_code == 200


@pytest.mark.parametrize("limit_s", [IDLE_S, SESSION_S])
async def test_a_session_ends_by_idleness_and_by_age(
    limit_s: float, fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    fresh.clock.fixed_s = start_s = 2e9
    await sign_in(http, fresh.admin_key)
    while fresh.clock.fixed_s + IDLE_S - 1 < start_s + limit_s - 1:
        fresh.clock.fixed_s += IDLE_S - 1
        assert (await http.get("/console")).status_code == 200
    fresh.clock.fixed_s = start_s + limit_s
    assert (await http.get("/console")).status_code == 303


async def test_signing_out_ends_the_session_for_whoever_has_its_cookie(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    await sign_in(http, fresh.admin_key)
    cookie = f"lpx_session={http.cookies['lpx_session']}"
    assert (await http.get("/console", headers={"cookie": cookie})).status_code == 200
    await http.post("/console/sign-out", data={"csrf": await token(http)})
    assert (await http.get("/console", headers={"cookie": cookie})).status_code == 303


async def test_revoking_the_admin_key_ends_its_sessions(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    await sign_in(http, fresh.admin_key)
    assert (await http.get("/console")).status_code == 200
    async with fresh.resources.database.session() as session:
        (key,) = await admin_keys.list_keys(session)
        await admin_keys.revoke(session, Act(CLI, fresh.resources.now()), key.key_id)
    assert (await http.get("/console")).status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "", "origin": "https://evil.example"},
    ],
)
async def test_a_form_of_another_site_changes_nothing_though_it_has_cookie_and_token(
    headers: dict[str, str], fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    await sign_in(http, fresh.admin_key)
    form = {"name": "acme", "csrf": await token(http)}
    answer = await http.post("/console/tenants", data=form, headers=headers)
    assert answer.status_code == 403
    async with fresh.resources.database.reader() as session:
        assert await directory.list_tenants(session) == []


async def test_a_browser_that_sends_only_its_origin_is_believed(fresh: ConsolePlatform) -> None:
    async with httpx.AsyncClient(base_url=fresh.root, headers={"origin": fresh.root}) as client:
        assert (await sign_in(client, fresh.admin_key)).status_code == 303


@pytest.mark.parametrize("value", ["", "0" * 64])
async def test_a_form_without_the_sessions_token_changes_nothing(
    value: str, fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    await sign_in(http, fresh.admin_key)
    answer = await http.post("/console/tenants", data={"name": "acme", "csrf": value})
    assert answer.status_code == 403


async def test_an_upload_without_the_sessions_token_is_refused(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    await sign_in(http, fresh.admin_key)
    resources = fresh.resources
    async with resources.database.session() as session:
        await directory.create(session, "acme", resources.now(), resources.entropy)
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b""}
    answer = await http.post("/console/tenants/acme/adapters", data={"name": "a"}, files=files)
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/console/tenants?q=a", "/console/tenants?q=a"),
        ("https://evil.example/console", "/console"),
        ("//evil.example/console", "/console"),
        ("/console\\evil.example", "/console"),
        ("/consoles", "/console"),
        ("/console/../v1/models", "/console"),
        ("/console/\r\nset-cookie: a=b", "/console"),
        ("/v1/models", "/console"),
        (None, "/console"),
    ],
)
def test_signing_in_leads_to_pages_of_the_console_only(target: str | None, path: str) -> None:
    assert same_origin_path(target) == path


async def test_every_answer_carries_the_policy_and_pages_are_not_kept(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    await sign_in(http, fresh.admin_key)
    for path in ("/console", "/console/sign-in", "/console/elsewhere", "/console/overview/points"):
        answer = await http.get(path)
        assert answer.headers["cache-control"] == "no-store", path
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "unsafe" not in policy


async def test_an_error_of_the_server_is_a_page_that_tells_nothing_but_its_id(
    fresh: ConsolePlatform, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("secret detail")

    await sign_in(http, fresh.admin_key)
    monkeypatch.setattr(directory, "list_tenants", fail)
    answer = await http.get("/console/tenants")
    assert answer.status_code == 500
    assert "secret detail" not in answer.text
    assert answer.headers["x-request-id"] in answer.text


async def test_what_a_person_typed_is_text_and_never_markup(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    await sign_in(http, fresh.admin_key)
    answer = await http.get("/console/tenants", params={"q": '"><script>alert(1)</script>'})
    assert "<script>alert" not in answer.text
    form = {"name": "<b>x</b>", "csrf": await token(http)}
    answer = await http.post("/console/tenants", data=form)
    assert answer.status_code == 400
    assert "<b>x</b>" not in answer.text
