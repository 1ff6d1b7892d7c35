"""The page of the worker's memory for adapters."""

import re
from itertools import pairwise

import httpx
from msgspec import structs
from playwright.async_api import Browser
from sqlalchemy import func, select, update
from tests.console.browsing import Visit, visiting
from tests.console.held import fill_memory
from tests.console.platform import ConsolePlatform

from loraplex.adapters.registry.registry import Publication, publish
from loraplex.adapters.registry.tables import AdapterVersion
from loraplex.tenants import directory
from loraplex.tenants.tables import Tenant

MEMORY = "/console/memory"


async def test_both_memories_the_adapters_routes_and_evictions_are_shown(visit: Visit) -> None:
    page = visit.page
    await visit.go(MEMORY)
    label = await page.get_attribute("section[aria-labelledby=device] svg", "aria-label")
    assert label is not None
    assert re.match(
        r"Device: used [\d.]+ MiB, awaited [\d.]+ MiB, pinned .*, free [\d.]+ MiB", label
    )
    adapters = await page.inner_text("section[aria-labelledby=adapters]")
    assert "acme/support@1" in adapters
    assert "40 %" in adapters
    routes = await page.inner_text("section[aria-labelledby=routes]")
    assert "layer-wise\t655" in routes
    assert "498.0 MiB/s throttled to 512.0 MiB/s" in await page.inner_text("#link")
    evictions = await page.inner_text("section[aria-labelledby=evictions]")
    assert "a load\t1,180\t96" in evictions
    assert "KV blocks\t9\t–" in evictions


async def test_pieces_of_a_bar_lie_side_by_side_and_leave_what_is_free(visit: Visit) -> None:
    await visit.go(MEMORY)
    widths = await visit.page.evaluate(
        """() => [...document.querySelectorAll('section[aria-labelledby=device] rect')]
             .map(e => [Number(e.getAttribute('x')), Number(e.getAttribute('width'))])"""
    )
    for (x, width), (following, _) in pairwise(widths):
        assert abs(x + width - following) < 0.1
    x, width = widths[-1]
    assert 0 < x + width < 1000


async def test_the_page_follows_the_worker_until_it_is_paused(
    browser: Browser, platform: ConsolePlatform
) -> None:
    before = platform.engine.report
    assert before is not None
    moved = structs.replace(before.cold, num_passes=77)
    async with visiting(browser, platform.root) as visit:
        page = visit.page
        await visit.enter(await platform.open_session())
        await visit.go(MEMORY)
        await page.get_by_text("Every 5 s").wait_for()
        platform.engine.report = structs.replace(before, cold=moved)
        try:
            await page.locator("dd", has_text="77").wait_for()
        finally:
            platform.engine.report = before
        await page.click("[data-pauses]")
        await page.get_by_text("Paused", exact=True).wait_for()
        assert await page.get_attribute("[data-pauses]", "aria-pressed") == "true"
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.evaluate(
            """() => new Promise(done => {
                 document.addEventListener('htmx:beforeRequest', () => setTimeout(done, 50));
               })"""
        )
        assert asked == []
        assert visit.complaints == []


async def test_who_prefers_less_motion_gets_a_page_that_stands_still(
    browser: Browser, platform: ConsolePlatform
) -> None:
    async with visiting(browser, platform.root, reduced_motion="reduce") as visit:
        await visit.enter(await platform.open_session())
        await visit.go(MEMORY)
        await visit.page.get_by_text("Paused", exact=True).wait_for()


async def test_without_javascript_the_page_is_read(
    browser: Browser, platform: ConsolePlatform
) -> None:
    async with visiting(browser, platform.root, java_script_enabled=False) as visit:
        await visit.enter(await platform.open_session())
        await visit.go(MEMORY)
        assert "layer-wise\t655" in await visit.page.inner_text("section[aria-labelledby=routes]")
        assert await visit.page.locator("[data-pauses]").is_hidden()


async def test_a_worker_that_is_away_is_told_with_what_to_run(
    visit: Visit, platform: ConsolePlatform
) -> None:
    platform.engine.is_connected = False
    try:
        await visit.go(MEMORY)
        assert "loraplex worker" in await visit.page.inner_text("#no-worker")
    finally:
        platform.engine.is_connected = True


async def test_an_adapter_is_pinned_and_unpinned_from_here(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    now, entropy = fresh.resources.now(), fresh.resources.entropy
    async with fresh.resources.database.session() as session:
        tenant = await directory.create(session, "acme", now, entropy)
        await publish(session, tenant.id, Publication("support", "ab" * 32, 8, 1000, "tiny"), now)
        await session.execute(update(Tenant).values(adapter_pin_bytes=1000))
    await fill_memory(fresh)
    http.cookies.set("lpx_session", await fresh.open_session())
    page = await http.get(MEMORY)
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', page.text)
    assert found
    assert 'aria-label="Pin acme/support@1"' in page.text
    form = {"csrf": found[1], "adapter": "support", "version": "1", "pinned": "true"}
    for pinned, told in (("true", "is pinned"), ("false", "is not pinned any more")):
        answer = await http.post(
            "/console/tenants/acme/adapters/pin", data=form | {"pinned": pinned}
        )
        assert answer.headers["location"] == MEMORY
        assert told in (await http.get(MEMORY)).text
        async with fresh.resources.database.reader() as session:
            num_pinned = select(func.count()).where(AdapterVersion.is_pinned)
            assert await session.scalar(num_pinned) == int(pinned == "true")
    answer = await http.post("/console/tenants/acme/adapters/pin", data=form | {"version": "01"})
    assert answer.status_code == 400


async def test_without_an_adapter_the_page_says_so(
    fresh: ConsolePlatform, http: httpx.AsyncClient
) -> None:
    http.cookies.set("lpx_session", await fresh.open_session())
    assert "No adapter is in memory" in (await http.get(MEMORY)).text
