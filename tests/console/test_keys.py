import httpx
from tests.console.browsing import Visit
from tests.console.platform import ConsolePlatform

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}


async def chat(platform: ConsolePlatform, key: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=platform.root) as client:
        headers = {"authorization": f"Bearer {key}"}
        return await client.post("/v1/chat/completions", json=BODY, headers=headers)


async def test_by_keyboard_alone_a_key_is_made_and_used_and_revoked(
    visit: Visit, platform: ConsolePlatform
) -> None:
    page = visit.page
    await visit.go("/console/tenants/globex/keys")
    await visit.press_until("Tab", "Label")
    await page.keyboard.type("by keyboard")
    await visit.press_until("Tab", "Create key")
    await page.keyboard.press("Enter")
    await page.get_by_text("Copy the new key now").wait_for()
    key = await page.locator("#new-key").input_value()
    assert (await chat(platform, key)).status_code == 200

    await visit.press_until("Tab", "Revoke the key by keyboard")
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", name="Revoke by keyboard?").wait_for()
    await visit.press_until("Tab", "Revoke key")
    await page.keyboard.press("Enter")
    await page.get_by_text("is revoked").wait_for()
    assert (await chat(platform, key)).status_code == 401


async def test_a_new_key_is_shown_once_and_the_focus_is_on_it(visit: Visit) -> None:
    page = visit.page
    await visit.go("/console/tenants/globex/keys")
    await page.fill("#label", "once")
    await page.click("text=Create key")
    notice = page.locator("#notice")
    await notice.wait_for()
    assert await notice.evaluate("e => e === document.activeElement")
    await page.reload()
    assert await notice.count() == 0


async def test_copying_a_key_is_announced(visit: Visit) -> None:
    page = visit.page
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await visit.go("/console/tenants/globex/keys")
    await page.click("text=Create key")
    await page.get_by_role("button", name="Copy").click()
    await page.locator("#announcer", has_text="Copied").wait_for(state="attached")
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == await page.locator("#new-key").input_value()


async def test_a_label_that_is_too_long_is_refused_beside_its_field(visit: Visit) -> None:
    page = visit.page
    await visit.go("/console/tenants/globex/keys")
    await page.fill("#label", "x" * 101)
    await page.click("text=Create key")
    await page.locator("#label[aria-invalid=true]").wait_for()
    described = await page.get_attribute("#label", "aria-describedby")
    assert described is not None
    assert described.startswith("label-error")
    assert "100 characters" in await page.inner_text("#label-error")
    visit.complaints.clear()  # the browser notes the status 400
