"""A browser that notes what goes wrong on a page, and steps that many tests take."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_MS = 60_000


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """The machine's Chromium, without a window."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    assert path, "no Chromium is installed: apt-get install --no-install-recommends chromium"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        await browser.close()


@dataclass
class Visit:
    """One page of a browser, and what it complained of."""

    page: Page
    root: str
    complaints: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Collect errors of scripts, of the console (violations of the policy among them)."""
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    async def go(self, path: str) -> None:
        await self.page.goto(self.root + path)

    async def enter(self, cookie: str) -> None:
        """Take the cookie of a session, as after signing in."""
        await self.page.context.add_cookies(
            [{"name": "lpx_session", "value": cookie, "url": self.root, "httpOnly": True}]
        )

    async def sign_in(self, admin_key: str) -> None:
        await self.go("/console/sign-in")
        await self.page.click("summary")
        await self.page.fill("#key", admin_key)
        await self.page.click("text=Sign in with the key")
        await self.page.wait_for_url("**/console")

    async def press_until(self, key: str, name: str) -> None:
        """Press a key until the element of this accessible name has the focus."""
        for _ in range(80):
            if await self.focused() == name:
                return
            await self.page.keyboard.press(key)
        raise AssertionError(f"{key} does not lead to {name!r}")

    async def focused(self) -> str:
        """The accessible name of what has the focus, as far as these pages need it."""
        return str(
            await self.page.evaluate(
                """() => {
                  const e = document.activeElement;
                  return e.getAttribute('aria-label')
                    || (e.labels && e.labels[0] ? e.labels[0].textContent : e.textContent).trim();
                }"""
            )
        )

    async def axe(self, *rules: str) -> list[str]:
        """What axe-core finds, by all its rules or by some, a line each."""
        options = {"resultTypes": ["violations"]}
        if rules:
            options["runOnly"] = list(rules)
        found = (await Axe().run(self.page, options=options)).response["violations"]
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for rule in found
            for node in rule["nodes"]
        ]

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.text} {message.location}")


@asynccontextmanager
async def visiting(browser: Browser, root: str, **options: object) -> AsyncIterator[Visit]:
    """A fresh profile; `options` are those of a browser context."""
    context = await browser.new_context(**options)  # type: ignore[arg-type]  # values of several types
    context.set_default_timeout(TIMEOUT_MS)
    visit = Visit(await context.new_page(), root)
    visit.listen()
    yield visit
    await context.close()
