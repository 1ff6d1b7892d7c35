"""Takes the pictures of the documentation: `python -m tests.console.screenshots FOLDER`."""

import asyncio
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from tests.console.browsing import Visit, open_browser, visiting
from tests.console.held import fill_memory
from tests.console.platform import ConsolePlatform, console_platform
from tests.console.traffic import believable
from tests.platform.scripted_engine import says

PAGES = {
    "overview": "/console",
    "memory": "/console/memory",
    "tenants": "/console/tenants",
    "adapters": "/console/tenants/hooli/adapters",
    "usage": "/console/tenants/acme/usage",
    "limits": "/console/tenants/hooli/limits",
    "playground": "/console/tenants/acme/playground?model=acme/triage",
}
NOW = datetime(2026, 11, 26, 14, 32, 10, tzinfo=UTC)
WINDOW = {"width": 1360, "height": 900}
ASKED = (
    "Hi, I was charged twice for order 48213 and nobody answers my mails. "
    "Please refund one of the two payments. Maria Lopez"
)
ANSWER = '{"category": "billing", "urgency": "high", "order": "48213", "action": "refund"}'


async def take(folder: Path) -> None:
    """Write a picture of each page in each scheme."""
    with tempfile.TemporaryDirectory() as data_dir:
        async with (
            console_platform(
                Path(data_dir), lifespan=False, model_name="SmolLM2-135M-Instruct"
            ) as platform,
            open_browser() as browser,
        ):
            await believable(platform, NOW, per_day=6000)
            await fill_memory(platform)
            for scheme in ("light", "dark"):
                options = {"color_scheme": scheme, "viewport": WINDOW}
                async with visiting(browser, platform.root, **options) as visit:
                    await visit.sign_in(platform.admin_key)
                    for name, path in PAGES.items():
                        await visit.go(path)
                        if name == "playground":
                            await _chat(visit, platform)
                        await visit.page.wait_for_load_state("networkidle")
                        picture = folder / f"{name}-{scheme}.png"
                        await visit.page.screenshot(path=picture, full_page=name != "usage")


async def _chat(visit: Visit, platform: ConsolePlatform) -> None:
    platform.engine.answer = says(*(ANSWER[i : i + 5] for i in range(0, len(ANSWER), 5)))
    await visit.page.click("#make-key")
    await visit.page.get_by_text("A key was made.").wait_for()
    await visit.page.fill("#message", ASKED)
    await visit.page.click("#send")
    await visit.page.get_by_text("The answer is complete.").wait_for()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(target))
