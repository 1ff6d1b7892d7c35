"""What the REST routes show of projects, keys, limits and members."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel

from loraplex.platform.api.paging import View
from loraplex.tenants.admin_keys import AdminKeyRecord
from loraplex.tenants.api_keys import KeyRecord
from loraplex.tenants.limit_changes import StoredLimit
from loraplex.tenants.members import Member
from loraplex.tenants.projects import ProjectRecord


class ProjectView(View):
    """A project."""

    object: Literal["project"] = "project"
    name: str
    status: str
    """The keys of an `archived` one are refused."""
    models: list[str] | None
    """That its keys may call; null allows all of the tenant's."""
    created_at: datetime

    @classmethod
    def of(cls, project: ProjectRecord) -> Self:
        """Show it."""
        return cls(
            id=project.id,
            name=project.name,
            status=project.status,
            models=_listed(project.models),
            created_at=project.created_at,
        )


class KeyView(View):
    """An API key, without the key."""

    object: Literal["api_key"] = "api_key"
    label: str
    project: str
    project_id: str
    role: str
    permissions: list[str] | None
    """Of what its role may; null allows all of that."""
    models: list[str] | None
    """Of those of its project; null allows all of them."""
    addresses: list[str] | None
    """Networks that its requests may come from; null allows all."""
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    rotated_at: datetime | None
    previous_until: datetime | None
    """Until when the secret before the last rotation opens, too."""

    @classmethod
    def of(cls, key: KeyRecord) -> Self:
        """Show it."""
        return cls(**_fields(key))


class NewKeyView(KeyView):
    """A key that was just made or rotated; `key` is shown this once and kept nowhere."""

    key: str

    @classmethod
    def with_text(cls, key: KeyRecord, text: str) -> Self:
        """Show it, with itself."""
        return cls(**_fields(key), key=text)


class AdminKeyView(View):
    """An operator's key, without the key."""

    object: Literal["admin_key"] = "admin_key"
    label: str
    role: str
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None

    @classmethod
    def of(cls, key: AdminKeyRecord) -> Self:
        """Show it."""
        return cls(**_admin_fields(key))


class NewAdminKeyView(AdminKeyView):
    """An operator's key that was just made; `key` is shown this once and kept nowhere."""

    key: str

    @classmethod
    def with_text(cls, key: AdminKeyRecord, text: str) -> Self:
        """Show it, with itself."""
        return cls(**_admin_fields(key), key=text)


class LimitView(View):
    """A limit of a tenant, project, key or adapter."""

    object: Literal["limit"] = "limit"
    scope: str
    scope_id: str
    """Id of the tenant, project or key; an adapter's name."""
    dimension: str
    value: int
    """Per minute, at a time or per month, in the dimension's unit."""
    burst: int | None
    """Of a limit per minute, what may be used at once; null is a minute's worth."""
    mode: str
    """`shadow` refuses nothing, and tells what it would have refused."""
    on_store_loss: str | None
    """`local`, `open` or `closed` while the store that gateways share is away; null is `local`."""
    updated_at: datetime

    @classmethod
    def of(cls, stored: StoredLimit) -> Self:
        """Show it."""
        limit = stored.limit
        return cls(
            id=stored.id,
            scope=stored.scope,
            scope_id=stored.scope_id,
            dimension=stored.dimension,
            value=limit.value,
            burst=limit.burst,
            mode=limit.mode,
            on_store_loss=limit.on_store_loss,
            updated_at=stored.updated_at,
        )


class RemovedView(BaseModel):
    """What was removed."""

    object: Literal["limit"] = "limit"
    id: str
    deleted: Literal[True] = True


class RemovedMemberView(BaseModel):
    """Who is no member any more."""

    object: Literal["member"] = "member"
    id: str
    """The person's."""
    deleted: Literal[True] = True


class MemberView(View):
    """A person's role in the tenant; `id` is the person's."""

    object: Literal["member"] = "member"
    email: str
    role: str
    since: datetime

    @classmethod
    def of(cls, member: Member) -> Self:
        """Show it."""
        return cls(
            id=member.person_id,
            email=member.email,
            role=member.role,
            since=member.since,
        )


def _fields(key: KeyRecord) -> dict[str, Any]:
    scopes = key.scopes
    return {
        "id": key.key_id,
        "label": key.label,
        "project": key.project,
        "project_id": key.project_id,
        "role": scopes.role,
        "permissions": _listed(scopes.permissions),
        "models": _listed(scopes.models),
        "addresses": _listed(scopes.addresses),
        "created_at": key.created_at,
        "last_used_at": key.last_used_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "rotated_at": key.rotated_at,
        "previous_until": key.previous_until,
    }


def _admin_fields(key: AdminKeyRecord) -> dict[str, Any]:
    return {
        "id": key.key_id,
        "label": key.label,
        "role": key.role,
        "created_at": key.created_at,
        "last_used_at": key.last_used_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    }


def _listed(values: Sequence[object] | None) -> list[str] | None:
    return None if values is None else [str(value) for value in values]
