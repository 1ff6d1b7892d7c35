from tests.console.browsing import Visit


async def test_older_requests_come_by_a_link_and_the_focus_goes_to_their_heading(
    visit: Visit,
) -> None:
    page = visit.page
    await visit.go("/console/tenants/acme/usage")
    newest = await page.locator("#requests tbody tr").first.inner_text()
    await page.get_by_role("link", name="Older").click()
    await page.locator("#announcer", has_text="requests").wait_for(state="attached")
    assert await page.locator("#requests tbody tr").first.inner_text() != newest
    assert await page.evaluate("document.activeElement.id") == "requests-title"
    await page.get_by_role("link", name="Newest").click()
    await page.get_by_text("the newest 25").wait_for()
    assert await page.locator("#requests tbody tr").first.inner_text() == newest


async def test_days_and_models_add_up_to_the_same_sums(visit: Visit) -> None:
    await visit.go("/console/tenants/globex/usage?days=30")
    sums = await visit.page.evaluate(
        """() => ['by-day', 'by-model'].map(id =>
             [...document.querySelectorAll(`[aria-labelledby=${id}] tbody tr td:nth-last-child(2)`)]
               .reduce((sum, cell) => sum + Number(cell.textContent.replace(/,/g, '')), 0))"""
    )
    assert sums[0] == sums[1] > 0
