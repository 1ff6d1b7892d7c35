"""What the REST routes show of people."""

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel

from loraplex.platform.api.paging import View
from loraplex.tenants.people import PersonRecord


class HeldRoleView(BaseModel):
    """A role that a person has somewhere."""

    role: str
    tenant: str | None
    """Name of the tenant; null for the platform's own roles."""
    tenant_id: str | None
    since: datetime


class PersonView(View):
    """Somebody who may sign in to the console."""

    object: Literal["person"] = "person"
    email: str
    name: str
    status: str
    """`active` or `disabled`."""
    has_password: bool
    oidc_issuer: str | None
    """By which the person has signed in; null before the first time."""
    roles: list[HeldRoleView]
    created_at: datetime
    signed_in_at: datetime | None

    @classmethod
    def of(cls, person: PersonRecord) -> Self:
        """Show all of it but what opens the door."""
        return cls(
            id=person.id,
            email=person.email,
            name=person.name,
            status=person.status,
            has_password=person.has_password,
            oidc_issuer=person.oidc_issuer,
            roles=[
                HeldRoleView(
                    role=held.role,
                    tenant=held.tenant_name,
                    tenant_id=held.tenant_id,
                    since=held.created_at,
                )
                for held in person.memberships
            ],
            created_at=person.created_at,
            signed_in_at=person.signed_in_at,
        )
