from tests.console.browsing import Visit
from tests.console.platform import ConsolePlatform


async def test_an_answer_streams_into_the_chat_with_a_key_that_is_stored_nowhere(
    visit: Visit, platform: ConsolePlatform
) -> None:
    page = visit.page
    await visit.go("/console/tenants/acme/playground")
    await page.select_option("#model", "tiny")
    await page.click("#make-key")
    await page.get_by_text("A key was made.").wait_for()
    await page.fill("#message", "hello")
    await page.keyboard.press("Control+Enter")
    await page.get_by_text("The answer is complete.").wait_for()
    assert await page.locator(".turn.assistant .said").inner_text() == "Hello!"
    stored = await page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
    assert "lpx_" not in stored
    await page.reload()
    assert await page.input_value("#key") == ""


async def test_a_key_that_is_refused_is_told_in_the_chat_and_the_message_is_kept(
    visit: Visit,
) -> None:
    page = visit.page
    await visit.go("/console/tenants/acme/playground")
    await page.fill("#key", "lpx_wrong")
    await page.fill("#message", "hello")
    await page.click("#send")
    await page.locator(".turn.failed").wait_for()
    assert "malformed" in await page.inner_text(".turn.failed")
    assert await page.input_value("#message") == "hello"
    visit.complaints.clear()  # the browser notes the status 401


async def test_an_answer_is_stopped_and_the_engine_with_it(
    visit: Visit, platform: ConsolePlatform
) -> None:
    page, engine = visit.page, platform.engine
    answer, engine.answer = engine.answer, None
    try:
        await visit.go("/console/tenants/acme/playground")
        await page.select_option("#model", "tiny")
        await page.click("#make-key")
        await page.get_by_text("A key was made.").wait_for()
        engine.forget_submitted()
        await page.fill("#message", "hello")
        await page.click("#send")
        submit = await engine.submitted()
        engine.emit(submit.request_id, "Hel")
        await page.locator(".turn.assistant .said", has_text="Hel").wait_for()
        await page.click("#stop")
        await page.get_by_text("Stopped; what came counts as used.").wait_for()
        await platform.app.state.services.open_requests.drain(10)
        assert submit.request_id in engine.aborted
    finally:
        engine.answer = answer
