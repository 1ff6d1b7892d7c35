"""What the REST routes show of adapters' names and of what was done to them."""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from loraplex.adapters.registry.aliases import Alias
from loraplex.adapters.registry.registry import PublishedVersion
from loraplex.platform.api.paging import View
from loraplex.platform.api.views import AdapterVersionView
from loraplex.tenants.audit import AuditRecord

MAX_SHOWN_VERSIONS = 20


class CanaryView(BaseModel):
    """The version that a part of an alias's requests runs on."""

    model_config = ConfigDict(frozen=True)

    version: int
    percent: int


class AliasView(View):
    """An alias; `id` is what a request may name as `model`."""

    object: Literal["adapter.alias"] = "adapter.alias"
    alias: str
    version: int
    previous: int | None
    """The version that a rollback goes to; null for none."""
    canary: CanaryView | None
    updated_at: datetime

    @classmethod
    def of(cls, alias: Alias) -> Self:
        """Show it."""
        canary = alias.canary
        return cls(
            id=alias.model,
            alias=alias.name,
            version=alias.version,
            previous=alias.previous,
            canary=canary and CanaryView(version=canary.version, percent=canary.percent),
            updated_at=alias.updated_at,
        )


class AdapterView(View):
    """An adapter: its newest versions, deleted ones too, and all its aliases."""

    object: Literal["adapter"] = "adapter"
    name: str
    versions: list[AdapterVersionView]
    """Newest first, 20 at most."""
    num_versions: int
    aliases: list[AliasView]

    @classmethod
    def of(cls, versions: list[PublishedVersion], aliases: list[Alias]) -> Self:
        """Show it; it has a version at least."""
        model = versions[0].model
        return cls(
            id=model,
            name=model.partition("/")[2],
            versions=[AdapterVersionView.of(v) for v in versions[:MAX_SHOWN_VERSIONS]],
            num_versions=len(versions),
            aliases=[AliasView.of(alias) for alias in aliases],
        )


class AuditEventView(View):
    """Something that somebody did."""

    object: Literal["audit.event"] = "audit.event"
    at: datetime
    actor: str
    """Id of the key or person that did it, `cli`, or `platform`."""
    actor_kind: str | None
    """`api_key`, `admin_key`, `person`, `cli` or `platform`; null in old events."""
    request_id: str | None
    tenant_id: str | None
    action: str
    subject: str
    detail: dict[str, Any]

    @classmethod
    def of(cls, event: AuditRecord) -> Self:
        """Show it."""
        return cls(
            id=str(event.id),
            at=event.at,
            actor=event.actor,
            actor_kind=event.actor_kind,
            request_id=event.request_id,
            tenant_id=event.tenant_id,
            action=event.action,
            subject=event.subject,
            detail=event.detail,
        )
