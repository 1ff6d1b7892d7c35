"""Signing in elsewhere: what is believed, what is told, and which roles it gives."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import delete
from tests.console.platform import ConsolePlatform, console_platform
from tests.console.signing_in import PASSWORD, START_S, add, stored
from tests.services.oidc import Claims, Issuer, go_through, running_issuer

from loraplex.platform.console.throttle import SignInThrottle
from loraplex.platform.oidc import issuer as issuers
from loraplex.platform.oidc.attempts import Attempts
from loraplex.platform.settings import Settings
from loraplex.tenants import directory, memberships, people
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.people_tables import ConsoleSession, MembershipRow, PersonRow, SignInState

ADA = {"email": "Ada@acme.example", "email_verified": True, "name": "Ada"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_issuer() -> AsyncIterator[Issuer]:
    async with running_issuer() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def issuer(shared_issuer: Issuer) -> Issuer:
    """The same server, with nothing that another test bent."""
    fresh = Issuer(shared_issuer.root)
    for name in ("client_secret", "subject", "bend", "algorithm", "is_down"):
        setattr(shared_issuer, name, getattr(fresh, name))
    shared_issuer.user, shared_issuer.in_userinfo = dict(ADA), {}
    shared_issuer.document, shared_issuer.asked = {}, []
    return shared_issuer


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_platform(
    tmp_path_factory: pytest.TempPathFactory, migrated: Path, shared_issuer: Issuer
) -> AsyncIterator[ConsolePlatform]:
    """A platform whose people sign in by the issuer; acme's are admitted."""
    folder = tmp_path_factory.mktemp("joined")
    settings = Settings(
        data_dir=folder,
        oidc_issuer=shared_issuer.root,
        oidc_client_id=shared_issuer.client_id,
        oidc_client_secret=shared_issuer.client_secret,
        oidc_admit=[
            {"email_domain": "acme.example", "role": "developer", "tenant": "acme"},
            {"claim": "groups", "value": "ops", "role": "operator"},
        ],
    )
    options = {"lifespan": False, "migrated": migrated, "settings": settings}
    async with console_platform(folder, **options) as running:
        resources = running.resources
        async with resources.database.session() as session:
            await directory.create(session, "acme", resources.now(), resources.entropy)
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def joined(shared_platform: ConsolePlatform, issuer: Issuer) -> ConsolePlatform:
    """The same platform without people, which has not asked the issuer yet."""
    state, resources = shared_platform.app.state, shared_platform.resources
    asked_before = state.console.elsewhere.issuer
    elsewhere = Attempts(issuers.Issuer(asked_before.identity, resources.clock), resources)
    throttle = SignInThrottle(resources.clock)
    state.console = replace(state.console, elsewhere=elsewhere, throttle=throttle)
    shared_platform.clock.fixed_s, issuer.now = START_S, shared_platform.clock
    async with resources.database.session() as session:
        for table in (ConsoleSession, SignInState, MembershipRow, PersonRow):
            await session.execute(delete(table))
    return shared_platform


@pytest_asyncio.fixture(loop_scope="session")
async def browser_of(joined: ConsolePlatform) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"sec-fetch-site": "same-origin"}
    async with httpx.AsyncClient(base_url=joined.root, headers=headers) as client:
        yield client


async def begin(http: httpx.AsyncClient, following: str = "/console/tenants") -> str:
    answer = await http.get("/console/sign-in/oidc", params={"next": following})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def sign_in(http: httpx.AsyncClient) -> httpx.Response:
    return await http.get(await go_through(await begin(http)))


def told(page: httpx.Response) -> str:
    found = re.search(r'id="problems"[^>]*>(.*?)</p>', page.text)
    return found[1] if found else ""


async def test_attempts_to_sign_in_elsewhere_are_counted_before_they_are_written_down(
    joined: ConsolePlatform, browser_of: httpx.AsyncClient
) -> None:
    for _ in range(60):
        await begin(browser_of)
    answer = await browser_of.get("/console/sign-in/oidc")
    assert answer.status_code == 429
    assert "Too many attempts" in told(answer)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
async def test_whoever_the_issuer_vouches_for_is_signed_in_and_led_on(
    algorithm: str, joined: ConsolePlatform, browser_of: httpx.AsyncClient, issuer: Issuer
) -> None:
    issuer.algorithm = algorithm
    answer = await sign_in(browser_of)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/tenants")
    assert "acme" in (await browser_of.get("/console/tenants")).text
    ada = await stored(joined, "ada@acme.example")
    assert [(m.tenant_name, m.role) for m in ada.memberships] == [("acme", "developer")]
    assert (ada.name, ada.oidc_issuer) == ("Ada", issuer.root)


async def test_what_must_stay_secret_is_not_in_the_database(
    joined: ConsolePlatform, browser_of: httpx.AsyncClient
) -> None:
    await begin(browser_of)
    (cookie,) = [c.value for c in browser_of.cookies.jar if c.name.startswith("lpx_oidc_")]
    file = joined.resources.settings.database_path
    data = b"".join(p.read_bytes() for p in file.parent.glob(file.name + "*"))
    assert b"redirect_uri" in data
    assert cookie.encode() not in data


async def test_a_key_that_the_issuer_changed_to_is_looked_for(
    joined: ConsolePlatform, browser_of: httpx.AsyncClient, issuer: Issuer
) -> None:
    await sign_in(browser_of)
    issuer.rotate()
    assert (await sign_in(browser_of)).status_code == 401  # too soon to ask again
    assert joined.clock.fixed_s is not None
    joined.clock.fixed_s += 10
    assert (await sign_in(browser_of)).status_code == 303
    assert issuer.asked.count("/keys") == 2


async def test_a_way_back_is_worth_nothing_in_another_browser(
    joined: ConsolePlatform, browser_of: httpx.AsyncClient, issuer: Issuer
) -> None:
    back = await go_through(await begin(browser_of))
    (name,) = [c.name for c in browser_of.cookies.jar if c.name.startswith("lpx_oidc_")]
    async with httpx.AsyncClient(base_url=joined.root, cookies={name: "0" * 64}) as other:
        answer = await other.get(back)
    assert answer.status_code == 401
    assert "another browser" in told(answer)
    assert issuer.asked.count("/token") == 0


async def test_a_way_back_is_gone_once_it_was_used_or_ten_minutes_passed(
    joined: ConsolePlatform, browser_of: httpx.AsyncClient
) -> None:
    back = await go_through(await begin(browser_of))
    cookies = dict(browser_of.cookies)
    assert (await browser_of.get(back)).status_code == 303
    async with httpx.AsyncClient(base_url=joined.root, cookies=cookies) as replaying:
        answer = await replaying.get(back)
    assert answer.status_code == 401
    assert "finished already" in told(answer)
    back = await go_through(await begin(browser_of))
    assert joined.clock.fixed_s is not None
    joined.clock.fixed_s += 600
    assert "over" in told(await browser_of.get(back))


async def test_a_code_that_was_taken_before_is_refused_by_the_issuer(
    browser_of: httpx.AsyncClient, joined: ConsolePlatform
) -> None:
    back = httpx.URL(await go_through(await begin(browser_of)))
    again = back.copy_set_param("code", "stolen")
    answer = await browser_of.get(str(again))
    assert answer.status_code == 401
    assert "invalid_grant" in told(answer)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"aud": "another"}, "its aud is wrong"),
        ({"iss": "https://evil.example"}, "its iss is wrong"),
        ({"nonce": "0"}, "its nonce is wrong"),
        ({"exp": START_S - 61}, "has expired"),
        ({"iat": START_S + 61}, "clocks"),
        ({"azp": "another"}, "another client"),
        ({"nonce": None}, "cannot be believed"),
        ({"email_verified": False}, "not say that your e-mail address is verified"),
        ({"email_verified": "true"}, "not say that your e-mail address is verified"),
        ({"email": "eve@evil.example"}, "not known here"),
    ],
)
async def test_what_cannot_be_believed_admits_nobody_and_says_why(
    change: Claims,
    said: str,
    browser_of: httpx.AsyncClient,
    joined: ConsolePlatform,
    issuer: Issuer,
) -> None:
    issuer.bend = lambda claims: {k: v for k, v in (claims | change).items() if v is not None}
    answer = await sign_in(browser_of)
    assert answer.status_code == 401
    assert said in told(answer)
    assert (await browser_of.get("/console/tenants")).status_code == 303
    async with joined.resources.database.reader() as session:
        assert await people.list_people(session) == []


async def test_clocks_may_differ_by_a_minute(
    browser_of: httpx.AsyncClient, joined: ConsolePlatform, issuer: Issuer
) -> None:
    issuer.bend = lambda claims: claims | {"iat": START_S + 59, "exp": START_S - 59}
    assert (await sign_in(browser_of)).status_code == 303


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
async def test_a_token_that_is_not_signed_by_the_issuers_key_is_refused(
    algorithm: str, browser_of: httpx.AsyncClient, joined: ConsolePlatform, issuer: Issuer
) -> None:
    issuer.algorithm = algorithm
    answer = await sign_in(browser_of)
    assert answer.status_code == 401
    assert "cannot be believed" in told(answer)


async def test_while_the_issuer_is_down_other_ways_go_on(
    browser_of: httpx.AsyncClient, joined: ConsolePlatform, issuer: Issuer
) -> None:
    issuer.is_down = True
    answer = await browser_of.get("/console/sign-in/oidc")
    assert answer.status_code == 503
    assert "does not answer" in told(answer)
    answer = await browser_of.post("/console/sign-in", data={"key": joined.admin_key})
    assert answer.status_code == 303


async def test_an_issuer_of_another_name_is_not_believed(
    browser_of: httpx.AsyncClient, joined: ConsolePlatform, issuer: Issuer
) -> None:
    issuer.document = {"issuer": "https://evil.example"}
    assert (await browser_of.get("/console/sign-in/oidc")).status_code == 503


async def test_what_the_token_lacks_is_asked_for_apart(
    browser_of: httpx.AsyncClient, joined: ConsolePlatform, issuer: Issuer
) -> None:
    issuer.in_userinfo, issuer.user = issuer.user, {}
    assert (await sign_in(browser_of)).status_code == 303
    assert (await stored(joined, "ada@acme.example")).name == "Ada"


async def test_a_known_address_is_linked_once_and_then_its_subject_counts(
    browser_of: httpx.AsyncClient, joined: ConsolePlatform, issuer: Issuer
) -> None:
    await add(joined, "bob@elsewhere.example", PASSWORD, "finance")
    issuer.user = {"email": "bob@elsewhere.example", "email_verified": True}
    assert (await sign_in(browser_of)).status_code == 303
    issuer.user = {"email": "renamed@elsewhere.example", "email_verified": False}
    assert (await sign_in(browser_of)).status_code == 303
    issuer.subject, issuer.user = (
        "sub-2",
        {"email": "bob@elsewhere.example", "email_verified": True},
    )
    answer = await sign_in(browser_of)
    assert "another identity" in told(answer)
    bob = await stored(joined, "bob@elsewhere.example")
    assert [m.role for m in bob.memberships] == ["finance"]


async def test_a_disabled_person_is_refused_though_the_issuer_vouches(
    browser_of: httpx.AsyncClient, joined: ConsolePlatform
) -> None:
    await sign_in(browser_of)
    ada = await stored(joined, "ada@acme.example")
    async with joined.resources.database.session() as session:
        await people.set_status(session, Act(CLI, joined.resources.now()), ada.id, "disabled")
    assert (await browser_of.get("/console/tenants")).status_code == 303
    assert "may not sign in any more" in told(await sign_in(browser_of))


async def test_a_value_of_a_claim_gives_the_role_of_its_rule(
    browser_of: httpx.AsyncClient, joined: ConsolePlatform, issuer: Issuer
) -> None:
    issuer.user = ADA | {"email": "olu@ops.example", "groups": ["all", "ops"]}
    assert (await sign_in(browser_of)).status_code == 303
    olu = await stored(joined, "olu@ops.example")
    assert [(m.tenant_name, m.role) for m in olu.memberships] == [(None, "operator")]


async def test_a_role_by_a_rule_ends_with_what_it_is_given_for_and_one_by_hand_stays(
    browser_of: httpx.AsyncClient, joined: ConsolePlatform, issuer: Issuer
) -> None:
    async def roles() -> list[tuple[str | None, str, bool]]:
        held = (await stored(joined, "ada@acme.example")).memberships
        return [(m.tenant_name, m.role, m.is_by_rule) for m in held]

    issuer.user = ADA | {"groups": ["ops"]}
    await sign_in(browser_of)
    assert await roles() == [(None, "operator", True), ("acme", "developer", True)]
    ada, resources = await stored(joined, "ada@acme.example"), joined.resources
    async with resources.database.session() as session:
        acme = await directory.get_by_name(session, "acme")
        await memberships.grant(
            session, Act(CLI, resources.now()), ada.id, "read_only", acme.id, resources.entropy
        )
    issuer.user = ADA | {"groups": ["sales"]}
    await sign_in(browser_of)
    assert await roles() == [("acme", "read_only", False)]
    issuer.user = ADA | {"groups": ["ops"]}
    await sign_in(browser_of)
    assert await roles() == [(None, "operator", True), ("acme", "read_only", False)]


async def test_an_address_that_a_tenant_added_beforehand_has_what_rules_give_as_well(
    browser_of: httpx.AsyncClient, joined: ConsolePlatform, issuer: Issuer
) -> None:
    resources = joined.resources
    await add(joined, "olu@ops.example")
    issuer.user = ADA | {"email": "olu@ops.example", "groups": ["ops"]}
    assert (await sign_in(browser_of)).status_code == 303
    olu = await stored(joined, "olu@ops.example")
    assert [(m.tenant_name, m.role) for m in olu.memberships] == [(None, "operator")]
    async with resources.database.session() as session:
        await people.unlink(session, Act(CLI, resources.now()), olu.id)
    assert (await browser_of.get("/console/tenants")).status_code == 303
    issuer.subject = "the-name-at-an-issuer-that-moved"
    assert (await sign_in(browser_of)).status_code == 303


async def test_a_subject_that_cannot_be_kept_is_refused_with_its_length(
    browser_of: httpx.AsyncClient, joined: ConsolePlatform, issuer: Issuer
) -> None:
    issuer.subject = "s" * 256
    answer = await sign_in(browser_of)
    assert answer.status_code == 401
    assert "256 characters" in told(answer)


@pytest.mark.parametrize("target", ["https://evil.example", "//evil.example/console", "/v1/models"])
async def test_the_issuer_leads_back_to_pages_of_the_console_only(
    target: str, browser_of: httpx.AsyncClient, joined: ConsolePlatform
) -> None:
    answer = await browser_of.get(await go_through(await begin(browser_of, target)))
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")


async def test_without_an_issuer_there_is_no_way_to_one(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    for path in ("/console/sign-in/oidc", "/console/sign-in/oidc/callback?state=a&code=b"):
        assert (await http.get(path)).status_code == 404
    assert "organisation" not in (await http.get("/console/sign-in")).text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"oidc_issuer": "https://idp.example"}, "LORAPLEX_OIDC_CLIENT_ID"),
        ({"oidc_issuer": "http://idp.example", "oidc_client_id": "a"}, "pattern"),
        ({"oidc_admit": [{"email_domain": "a.example", "role": "owner"}]}, "operator"),
        ({"oidc_admit": [{"email_domain": "a.example", "role": "developer"}]}, "without a tenant"),
        ({"oidc_admit": [{"claim": "groups", "role": "finance"}]}, "claim and value"),
    ],
)
def test_settings_that_admit_by_mistake_are_refused(values: Claims, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings(**values)
