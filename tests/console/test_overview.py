from playwright.async_api import Browser
from tests.console.browsing import Visit, visiting
from tests.console.platform import ConsolePlatform


async def test_six_charts_are_drawn_and_say_what_they_show(visit: Visit) -> None:
    page = visit.page
    await visit.go("/console")
    await page.get_by_text("Live, the last 15 minutes").wait_for()
    assert await page.locator(".plot canvas").count() == 6
    label = await page.get_attribute("[data-chart=load] .plot", "aria-label")
    assert label is not None
    assert "running: now 3, lowest" in label


async def test_new_samples_come_without_a_reload(visit: Visit, platform: ConsolePlatform) -> None:
    await visit.go("/console")
    old = platform.engine.metrics_text
    platform.engine.metrics_text = old.replace('{state="running"} 3.0', '{state="running"} 21.0')
    try:
        await visit.page.locator("[data-series=running] b", has_text="21").wait_for()
    finally:
        platform.engine.metrics_text = old


async def test_who_prefers_less_motion_gets_charts_that_stand_still(
    browser: Browser, platform: ConsolePlatform
) -> None:
    async with visiting(browser, platform.root, reduced_motion="reduce") as visit:
        await visit.enter(await platform.open_session())
        await visit.go("/console")
        await visit.page.get_by_text("Paused", exact=True).wait_for()
        assert await visit.page.get_attribute("#pause", "aria-pressed") == "true"
        assert await visit.page.locator(".plot canvas").count() == 6


async def test_a_worker_that_is_away_is_told_with_what_to_run(
    visit: Visit, platform: ConsolePlatform
) -> None:
    platform.engine.is_connected = False
    try:
        await visit.go("/console")
        assert "loraplex worker" in await visit.page.inner_text("#no-worker")
    finally:
        platform.engine.is_connected = True
