"""The page of limits: use, what is left above, the form, and why requests were refused."""

import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import httpx
import pytest
import pytest_asyncio
from tests.console.platform import ConsolePlatform

from loraplex.platform.console.limits import LimitRow, limit_rows
from loraplex.platform.refusals import Refusals
from loraplex.tenants import api_keys, directory, members, projects
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import QuotaExceeded
from loraplex.tenants.key_scopes import of_platform
from loraplex.tenants.reservations import Amounts, Hold, Reservation
from loraplex.tenants.scoped_limits import ScopedLimit
from loraplex.tenants.standings import Standing

NOW = datetime(2026, 3, 1, tzinfo=UTC)
WORST = Amounts(input_tokens=300, output_tokens=700, cost_micros=0)


class Tenant:
    """A tenant with limits on each level, its key, and a browser of one of its people."""

    def __init__(self, platform: ConsolePlatform, record: TenantRecord, key_id: str) -> None:
        self.platform, self.record, self.key_id = platform, record, key_id

    @property
    def project_id(self) -> str:
        return projects.default_project_id(self.record.id)

    async def client(self, role: str | None) -> httpx.AsyncClient:
        """Of a person with the role, or of the operator."""
        person_id = None
        if role is not None:
            resources = self.platform.resources
            async with resources.database.session() as session:
                grantor = of_platform(Act(CLI, resources.now()))
                person = await members.add(
                    session, grantor, self.record.id, f"{role}@x.example", role, resources.entropy
                )
            person_id = person.person_id
        cookie = await self.platform.open_session(person_id)
        return httpx.AsyncClient(
            base_url=self.platform.root,
            headers={"sec-fetch-site": "same-origin"},
            cookies={"lpx_session": cookie},
        )

    async def shown(self) -> dict[tuple[str, str], LimitRow]:
        services = self.platform.app.state.services
        rows = await limit_rows(services, self.record)
        return {(row.limit.scope, row.limit.dimension): row for row in rows}


@pytest_asyncio.fixture(loop_scope="session")
async def acme(fresh: ConsolePlatform) -> AsyncIterator[Tenant]:
    resources = fresh.resources
    async with resources.database.session() as session:
        record = await directory.create(session, "acme", resources.now(), resources.entropy)
        key = await api_keys.mint(
            session, record, "ci", resources.pepper, resources.now(), resources.entropy
        )
    yield Tenant(fresh, record, key.key_id)


async def post(client: httpx.AsyncClient, path: str = "", **fields: str) -> httpx.Response:
    page = await client.get("/console/account")
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', page.text)
    assert found
    data = {"csrf": found[1], "mode": "enforce"} | fields
    return await client.post(f"/console/tenants/acme/limits{path}", data=data)


async def test_a_tenants_admin_sets_limits_below_the_tenants_and_never_its_own(
    acme: Tenant,
) -> None:
    project, tenant = f"project:{acme.project_id}", f"tenant:{acme.record.id}"
    what = {"dimension": "tokens_per_minute", "value": "200,000"}
    async with await acme.client("tenant_admin") as client:
        page = await client.get("/console/tenants/acme/limits")
        assert tenant not in page.text.replace("%3A", ":").split("<form", 1)[1]
        assert (await post(client, owner=tenant, **what)).status_code == 403
        answer = await post(client, owner=project, **what)
        assert answer.status_code == 303, answer.text
        assert "project default" in (await client.get(answer.headers["location"])).text
        beyond = await post(client, owner=project, **what | {"value": "999999999"})
        assert beyond.status_code == 400
        assert "the platform has 600000" in beyond.text.replace(",", "")
        assert 'value="999999999"' in beyond.text
        for wrong in ({"owner": "project:other"}, {"value": "many"}, {"value": ""}, {"mode": "x"}):
            assert (await post(client, **{"owner": project, **what} | wrong)).status_code == 400
    async with await acme.client(None) as operator:
        assert (await post(operator, owner=tenant, **what)).status_code == 303
        removed = await post(operator, "/remove", owner=project, dimension="tokens_per_minute")
        assert removed.status_code == 303
    assert set(await acme.shown()) == {
        ("tenant", "requests_per_minute"),
        ("tenant", "tokens_per_minute"),
        ("tenant", "concurrency"),
    }


async def test_keys_are_named_to_who_may_read_them(acme: Tenant) -> None:
    async with await acme.client(None) as operator:
        of_key = {"owner": f"key:{acme.key_id}", "dimension": "concurrency", "value": "3"}
        assert (await post(operator, **of_key)).status_code == 303
        assert acme.key_id in (await operator.get("/console/tenants/acme/limits")).text
    async with await acme.client("developer") as client:
        page = await client.get("/console/tenants/acme/limits")
    assert page.status_code == 200
    assert acme.key_id not in page.text


async def test_a_row_tells_use_and_what_is_left_above_it(acme: Tenant) -> None:
    resources, project = acme.platform.resources, acme.project_id
    async with await acme.client(None) as client:
        for owner, dimension, value, mode in (
            (f"project:{project}", "concurrency", "3", "enforce"),
            (f"key:{acme.key_id}", "concurrency", "3", "shadow"),
            (f"tenant:{acme.record.id}", "tokens_per_month", "1000000", "enforce"),
        ):
            answer = await post(client, owner=owner, dimension=dimension, value=value, mode=mode)
            assert answer.status_code == 303, answer.text
        rows = await acme.shown()
        by_project = tuple(r.limit for n, r in rows.items() if n[0] in ("tenant", "project"))
        rates = tuple(limit for limit in by_project if limit.budget is None)
        await resources.quotas.reserve(Reservation("r1", acme.record.id, rates, WORST))
        rows = await acme.shown()
        mine = rows["key", "concurrency"]
        assert mine.standing is not None
        assert mine.standing.remaining == 3
        assert (mine.standing.parent_remaining, mine.standing.available) == (2, 2)
        assert rows["tenant", "requests_per_minute"].is_default
        budget = rows["tenant", "tokens_per_month"].standing
        assert budget is not None
        assert (budget.used, budget.remaining) == (0, 1_000_000)
        page = (await client.get("/console/tenants/acme/limits")).text
        told = await client.get(
            f"/admin/v1/tenants/acme/limits/standings?key_id={acme.key_id}",
            headers={"authorization": f"Bearer {acme.platform.admin_key}"},
        )
    assert set(rows) == {(one["scope"], one["dimension"]) for one in told.json()["data"]}
    for one in told.json()["data"]:
        if one["dimension"].endswith("minute"):
            continue  # that drains meanwhile
        standing = rows[one["scope"], one["dimension"]].standing
        assert standing is not None
        assert (standing.used, standing.remaining) == (one["used"], one["remaining"])
        assert standing.parent_remaining == one["parent_remaining"]
    assert "less than its own" in page
    assert "shadow" in page
    assert "01 " in page, "the day on which the budget begins anew"


async def test_while_the_store_is_away_pages_say_so_and_show_the_rest(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody_counts(*_: object) -> tuple[Standing, ...]:
        return ()

    quotas = type(acme.platform.resources.quotas)
    monkeypatch.setattr(quotas, "standings", nobody_counts)
    monkeypatch.setattr(quotas, "is_degraded", True)
    async with await acme.client(None) as client:
        for path in ("/console/tenants/acme/limits", "/console"):
            page = await client.get(path)
            assert page.status_code == 200
            assert "The store that gateways share is away" in page.text
        assert "not known now" in (await client.get("/console/tenants/acme/limits")).text
        assert (await client.get("/console/tenants/acme")).status_code == 200


LIMIT = ScopedLimit("key", "k", "requests_per_minute", 1, 1)


async def _refused() -> Hold:
    raise QuotaExceeded(LIMIT, 12.0)


async def _held(shadowed: Sequence[ScopedLimit]) -> Hold:
    return Hold(Reservation("r", "t", (LIMIT,), WORST), (), tuple(shadowed))


async def test_the_last_refusals_of_a_tenant_are_told_newest_first_and_no_others() -> None:
    refusals = Refusals()
    for number in range(60):
        with pytest.raises(QuotaExceeded):
            await refusals.noted(_refused(), "t", f"req-{number}", NOW)
    await refusals.noted(_held([LIMIT]), "t", "req-shadow", NOW)
    await refusals.noted(_held([]), "t", "req-fine", NOW)
    told = refusals.of("t")
    assert [refusal.request_id for refusal in told[:2]] == ["req-shadow", "req-59"]
    assert len(told) == 50
    assert "try again in 12" in told[1].message
    assert refusals.of("other") == []


async def test_a_page_of_limits_says_why_a_request_was_refused(acme: Tenant) -> None:
    refusals = acme.platform.app.state.services.refusals
    with pytest.raises(QuotaExceeded):
        await refusals.noted(_refused(), acme.record.id, "req-refused", NOW)
    async with await acme.client("read_only") as client:
        page = (await client.get("/console/tenants/acme/limits")).text
    assert "req-refused" in page
    assert "Save the limit" not in page
