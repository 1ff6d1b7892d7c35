from pathlib import Path

import httpx
from tests.adapters import build
from tests.console.browsing import Visit
from tests.console.platform import PEPPER, ConsolePlatform, adapter_files

from loraplex.tenants import api_keys, directory


async def key_of(platform: ConsolePlatform, tenant: str) -> str:
    resources = platform.resources
    async with resources.database.session() as session:
        owner = await directory.get_by_name(session, tenant)
        minted = await api_keys.mint(
            session, owner, "test", PEPPER, resources.now(), resources.entropy
        )
    return minted.text


async def upload(visit: Visit, name: str, config: Path, tensors: Path) -> None:
    page = visit.page
    await page.fill("#name", name)
    await page.set_input_files("#config", config)
    await page.set_input_files("#tensors", tensors)
    await page.click("text=Upload and publish")


async def test_an_adapter_is_uploaded_and_can_be_called_at_once(
    visit: Visit, platform: ConsolePlatform, tmp_path: Path
) -> None:
    await visit.go("/console/tenants/wonka/adapters")
    await upload(visit, "bars", *adapter_files(tmp_path / "bars"))
    await visit.page.get_by_text("wonka/bars@1 is published").wait_for()
    key = await key_of(platform, "wonka")
    platform.engine.forget_submitted()
    body = {"model": "wonka/bars", "prompt": "hello", "max_tokens": 8}
    async with httpx.AsyncClient(base_url=platform.root) as client:
        headers = {"authorization": f"Bearer {key}"}
        answer = await client.post("/v1/completions", json=body, headers=headers)
    assert answer.json()["choices"][0]["text"] == "Hello!"
    assert (await platform.engine.submitted()).adapter is not None


async def test_an_adapter_that_does_not_fit_is_refused_with_every_reason(
    visit: Visit, tmp_path: Path
) -> None:
    build.save(tmp_path / "bad", {"r": 3, "use_rslora": "yes"})
    folder = tmp_path / "bad"
    await visit.go("/console/tenants/acme/adapters")
    await upload(visit, "bad", folder / "adapter_config.json", folder / "adapter_model.safetensors")
    problems = visit.page.locator("#problems")
    await problems.wait_for()
    assert await problems.evaluate("e => e === document.activeElement")
    assert "use_rslora" in await problems.inner_text()
    assert await visit.axe() == []
    visit.complaints.clear()  # the browser notes the status 400
