from dataclasses import replace

from tests.console.browsing import Visit
from tests.console.platform import ConsolePlatform

from loraplex.tenants import directory


async def record_of(platform: ConsolePlatform, name: str) -> directory.TenantRecord:
    async with platform.resources.database.reader() as session:
        return await directory.get_by_name(session, name)


async def test_a_tenant_is_created_and_its_keys_come_next(
    visit: Visit, platform: ConsolePlatform
) -> None:
    await visit.go("/console/tenants")
    await visit.page.fill("#name", "tyrell")
    await visit.page.click("text=Create tenant")
    await visit.page.wait_for_url("**/tenants/tyrell/keys")
    assert "tyrell has no key yet" in await visit.page.inner_text("main")
    assert (await record_of(platform, "tyrell")).status == "active"


async def test_a_name_that_is_taken_is_refused_beside_its_field(visit: Visit) -> None:
    await visit.go("/console/tenants")
    await visit.page.fill("#name", "acme")
    await visit.page.click("text=Create tenant")
    await visit.page.locator("#name[aria-invalid=true]").wait_for()
    assert "exists already" in await visit.page.inner_text("#name-error")
    visit.complaints.clear()  # the browser notes the status 400


async def test_a_tenant_is_suspended_only_when_its_name_was_typed(
    visit: Visit, platform: ConsolePlatform
) -> None:
    page = visit.page
    await visit.go("/console/tenants/stark")
    await page.fill("#confirm", "stork")
    await page.click("text=Suspend stark")
    await page.locator("#confirm-error").wait_for()
    assert (await record_of(platform, "stark")).status == "active"
    visit.complaints.clear()  # the browser notes the status 400

    await page.fill("#confirm", "stark")
    await page.click("text=Suspend stark")
    await page.get_by_text("stark is suspended").wait_for()
    assert (await record_of(platform, "stark")).status == "suspended"

    await page.fill("#confirm", "stark")
    await page.click("text=Resume stark")
    await page.get_by_text("stark is active").wait_for()
    assert (await record_of(platform, "stark")).status == "active"


async def test_weight_and_deadline_are_saved_and_limits_stay(
    visit: Visit, platform: ConsolePlatform
) -> None:
    page, before = visit.page, await record_of(platform, "hooli")
    await visit.go("/console/tenants/hooli")
    await page.fill("#ttft_deadline_ms", "1,500")
    await page.fill("#weight", "2.5")
    await page.click("text=Save the share")
    await page.get_by_text("The share was saved").wait_for()
    tenant = await record_of(platform, "hooli")
    assert tenant.weight == 2.5
    assert tenant.limits == replace(before.limits, ttft_deadline_ms=1500)


async def test_a_deadline_that_is_no_number_is_refused_and_stays_in_its_field(
    visit: Visit,
) -> None:
    page = visit.page
    await visit.go("/console/tenants/initech")
    await page.fill("#ttft_deadline_ms", "many")
    await page.click("text=Save the share")
    await page.locator("#ttft_deadline_ms[aria-invalid=true]").wait_for()
    assert await page.input_value("#ttft_deadline_ms") == "many"
    visit.complaints.clear()  # the browser notes the status 400


async def test_the_list_narrows_while_a_name_is_typed_and_says_so(visit: Visit) -> None:
    page = visit.page
    await visit.go("/console/tenants")
    await page.locator("#q").press_sequentially("hool")
    await page.locator("#announcer", has_text="1 of ").wait_for(state="attached")
    assert await page.locator("#list tbody tr").count() == 1
    assert page.url.endswith("?q=hool")
    assert await visit.focused() == "Find a tenant by name"
