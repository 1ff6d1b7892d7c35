from playwright.async_api import Browser
from tests.console.browsing import visiting
from tests.console.platform import ConsolePlatform, adapter_files


async def test_without_javascript_pages_are_read_and_forms_are_sent(
    browser: Browser, platform: ConsolePlatform, tmp_path
) -> None:
    async with visiting(browser, platform.root, java_script_enabled=False) as visit:
        page = visit.page
        await visit.sign_in(platform.admin_key)
        await page.locator("[data-chart=kv] summary").click()
        assert "," in await page.inner_text("[data-chart=kv] tbody td >> nth=-1")
        assert await page.locator(".plot").first.is_hidden()

        await visit.go("/console/tenants?q=globex")
        assert await page.locator("#list tbody tr").count() == 1
        await page.fill("#name", "noscript")
        await page.click("text=Create tenant")
        await page.fill("#label", "first")
        await page.click("text=Create key")
        assert (await page.input_value("#new-key")).startswith("lpx_")
        await page.click("[aria-label='Revoke the key first']")
        await page.click("text=Revoke key")
        assert "is revoked" in await page.inner_text("#notice")

        await visit.go("/console/tenants/noscript/adapters")
        config, tensors = adapter_files(tmp_path / "adapter")
        await page.fill("#name", "one")
        await page.set_input_files("#config", config)
        await page.set_input_files("#tensors", tensors)
        await page.click("text=Upload and publish")
        assert "noscript/one@1 is published" in await page.inner_text("#notice")

        await visit.go("/console/tenants/noscript/playground")
        assert "needs JavaScript" in await page.inner_text("main")
        await page.click("text=Sign out")
        assert await page.inner_text("h1") == "Sign in"
        assert visit.complaints == []
