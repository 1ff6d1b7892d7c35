"""What each route of the console needs: one declaration each, one check for all."""

from dataclasses import dataclass
from datetime import datetime

from fastapi import Request

from loraplex.platform.console.access import Session, SignedIn
from loraplex.platform.deps import services_of
from loraplex.tenants import directory
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import PermissionMissing, TenantNotFound
from loraplex.tenants.key_scopes import Grantor, of_person
from loraplex.tenants.roles import Permission, Permissions


@dataclass(frozen=True, slots=True)
class Place:
    """A tenant that the caller may see, and who the caller is."""

    session: Session
    tenant: TenantRecord
    held: Permissions
    """What the caller may do there."""

    def grantor(self, now: datetime) -> Grantor:
        """The bounds of what the caller can give there."""
        inside = self.session.tenants.get(self.tenant.id, frozenset())
        return of_person(self.session.act(now), self.session.platform, inside)


@dataclass(frozen=True, slots=True)
class Inside:
    """A dependency: the tenant of the path, for whoever holds one of the permissions there.

    To whom holds nothing there the tenant does not exist.
    """

    needed: Permission
    or_else: Permission | None = None

    async def __call__(self, name: str, request: Request, session: SignedIn) -> Place:
        """Raises TenantNotFound, PermissionMissing."""
        async with services_of(request).resources.database.reader() as reader:
            tenant = await directory.get_by_name(reader, name)
        held = session.platform | session.tenants.get(tenant.id, frozenset())
        if not held:
            raise TenantNotFound(f"There is no tenant {name[:60]!r}.")
        if self.or_else not in held:
            check(session, held, self.needed, tenant.name)
        return Place(session, tenant, held)


@dataclass(frozen=True, slots=True)
class OnPlatform:
    """A dependency: the session of whoever holds the permission on the whole platform."""

    needed: Permission

    async def __call__(self, session: SignedIn) -> Session:
        """Raises PermissionMissing."""
        check(session, session.platform, self.needed)
        return session


def check(
    session: Session, held: Permissions, needed: Permission, tenant: str | None = None
) -> None:
    """Let pass whoever holds the permission; tells others what they are, and where they are: in
    this tenant, or on the platform. Raises PermissionMissing."""
    if needed in held:
        return
    is_person = session.owner.person_id is not None
    who = session.label if is_person else f"The admin key {session.label}"
    where, whom = "of the platform", "an owner of the platform"
    if tenant is not None:
        where, whom = f"of the tenant {tenant}", f"{whom} or an administrator of {tenant}"
    told = f"This page {where} needs the permission {needed}, which {who} does not have; "
    raise PermissionMissing(needed, f"{told}ask {whom} for a role that has it.")
