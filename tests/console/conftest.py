"""One gateway and one browser for all tests of this folder, in one event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser
from tests.console.browsing import Visit, open_browser, visiting
from tests.console.held import fill_memory
from tests.console.platform import WORKER_METRICS, ConsolePlatform, console_platform
from tests.console.traffic import believable

from loraplex.tenants.db import Database, migrate


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents and item.get_closest_marker("asyncio"):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as opened:
        yield opened


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def platform(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsolePlatform]:
    """Filled with tenants and traffic; its clock is the machine's again."""
    folder = tmp_path_factory.mktemp("console")
    async with console_platform(folder, lifespan=False) as running:
        await believable(running, datetime.now(UTC) - timedelta(seconds=2))
        await fill_memory(running)
        running.clock.fixed_s, running.engine.metrics_text = None, WORKER_METRICS
        sampling = asyncio.create_task(running.app.state.console.sampler.run())
        yield running
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser, platform: ConsolePlatform) -> AsyncIterator[Visit]:
    """An operator who is signed in; nothing may have gone wrong on any page in the end."""
    async with visiting(browser, platform.root) as visit:
        await visit.enter(await platform.open_session())
        yield visit
        assert visit.complaints == []


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database file, to copy."""
    path = tmp_path_factory.mktemp("migrated") / "loraplex.db"
    database = Database.open(f"sqlite+aiosqlite:///{path}")
    await migrate(database)
    await database.close()
    return path


@pytest_asyncio.fixture(loop_scope="session")
async def fresh(tmp_path: Path, migrated: Path) -> AsyncIterator[ConsolePlatform]:
    """An empty platform of the test's own, with nothing in the background."""
    async with console_platform(tmp_path, lifespan=False, migrated=migrated) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def http(fresh: ConsolePlatform) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `fresh` that says of itself what a browser says on the console's own pages."""
    headers = {"sec-fetch-site": "same-origin"}
    async with httpx.AsyncClient(base_url=fresh.root, headers=headers) as client:
        yield client
