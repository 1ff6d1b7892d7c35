from playwright.async_api import Browser
from tests.console.browsing import Visit, visiting
from tests.console.platform import ConsolePlatform
from tests.console.traffic import EVERYWHERE

from loraplex.tenants import people

PAGES = {
    "overview": "/console",
    "memory": "/console/memory",
    "tenants": "/console/tenants",
    "no tenant found": "/console/tenants?q=nobody",
    "tenant": "/console/tenants/acme",
    "suspended tenant": "/console/tenants/umbrella",
    "keys": "/console/tenants/acme/keys",
    "adapters": "/console/tenants/hooli/adapters",
    "no adapters": "/console/tenants/wonka/adapters",
    "usage": "/console/tenants/acme/usage",
    "no usage": "/console/tenants/wonka/usage",
    "playground": "/console/tenants/acme/playground",
    "projects": "/console/tenants/acme/projects",
    "limits": "/console/tenants/hooli/limits",
    "members": "/console/tenants/acme/members",
    "audit": "/console/audit?check=true",
    "people": "/console/people",
    "account": "/console/account",
    "nothing here": "/console/elsewhere",
}


async def test_no_page_has_a_fault_that_axe_finds_in_light_or_dark(
    browser: Browser, platform: ConsolePlatform
) -> None:
    # Without transitions, whose colours in between belong to neither scheme.
    async with visiting(browser, platform.root, reduced_motion="reduce") as visit:
        await visit.go("/console/sign-in")
        found = {"sign in": await _faults(visit)}
        await visit.enter(await platform.open_session())
        for name, path in (PAGES | await _person(platform)).items():
            await visit.go(path)
            await _open_details(visit)
            found[name] = await _faults(visit)
            assert await visit.page.locator("h1").count() == 1, name
        assert {name: faults for name, faults in found.items() if faults} == {}
        assert [c for c in visit.complaints if "404 (Not Found)" not in c] == []


async def test_at_400_pixels_no_page_is_wider_than_the_window(
    browser: Browser, platform: ConsolePlatform
) -> None:
    window = {"width": 400, "height": 800}
    async with visiting(browser, platform.root, viewport=window) as visit:
        await visit.enter(await platform.open_session())
        wide = {}
        for name, path in PAGES.items():
            await visit.go(path)
            width = await visit.page.evaluate("document.documentElement.scrollWidth")
            if width > window["width"]:
                wide[name] = width
        assert wide == {}


async def test_targets_of_the_pointer_are_at_least_24_pixels_high(visit: Visit) -> None:
    small = []
    for path in PAGES.values():
        if path == PAGES["nothing here"]:
            continue
        await visit.go(path)
        small += await visit.page.evaluate(
            """() => [...document.querySelectorAll('a, button, input, select, textarea, summary')]
                 .filter(e => e.checkVisibility())
                 .filter(e => !e.closest('.skip, footer, .hint, .empty, .warning'))
                 .filter(e => e.getBoundingClientRect().height < 24)
                 .map(e => e.outerHTML.slice(0, 120))"""
        )
    assert small == []


async def _person(platform: ConsolePlatform) -> dict[str, str]:
    async with platform.resources.database.reader() as session:
        person = await people.get_by_email(session, EVERYWHERE)
    return {"person": f"/console/people/{person.id}"}


async def _faults(visit: Visit) -> list[str]:
    """In both schemes, which differ in colours alone."""
    await visit.page.emulate_media(color_scheme="light")
    light = await visit.axe()
    await visit.page.emulate_media(color_scheme="dark")
    return light + await visit.axe("color-contrast")


async def _open_details(visit: Visit) -> None:
    for summary in await visit.page.locator("summary").all():
        await summary.click()
