"""People who can sign in."""

from tests.console.platform import ConsolePlatform, cheap_passwords

from loraplex.tenants import memberships, people
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.people import PersonRecord

PASSWORD = "correct horse battery"
START_S = 2e9


async def add(
    platform: ConsolePlatform, email: str, password: str | None = None, role: str | None = None
) -> PersonRecord:
    resources = platform.resources
    act = Act(CLI, resources.now())
    hashed = await cheap_passwords().hash(password) if password else None
    async with resources.database.session() as session:
        person = await people.add(session, act, email, "", resources.entropy)
        if hashed:
            await people.set_password(session, act, person.id, hashed)
        if role:
            await memberships.grant(session, act, person.id, role, None, resources.entropy)
    return person


async def stored(platform: ConsolePlatform, email: str) -> PersonRecord:
    async with platform.resources.database.reader() as session:
        return await people.get_by_email(session, email)
