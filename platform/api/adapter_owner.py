"""Whose adapters a request is about, and who makes it: what both APIs' routes ask for."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry import aliases, registry
from loraplex.adapters.registry.names import AdapterName
from loraplex.platform.api.adapter_views import AdapterView
from loraplex.platform.api.views import AdapterVersionView
from loraplex.platform.deps import Caller
from loraplex.platform.services import Services
from loraplex.tenants.audit import Act

OwnerOf = Callable[..., Awaitable["AdapterOwner"]]
"""A dependency of a router: from a request to its owner."""


@dataclass(frozen=True, slots=True)
class AdapterOwner:
    """A tenant, and who acts on its adapters."""

    tenant_id: str
    actor: str
    """Id of the key."""

    def named(self, adapter: str) -> AdapterName:
        """One of its adapters."""
        return AdapterName(self.tenant_id, adapter)

    def act(self, services: Services) -> Act:
        """What is done now, for the audit log."""
        return Act(self.actor, services.now())


async def caller_owns(caller: Caller) -> AdapterOwner:
    """The tenant of the caller's key."""
    return AdapterOwner(caller.tenant_id, caller.key_id)


async def show_adapter(session: AsyncSession, name: AdapterName) -> AdapterView:
    """Show an adapter. Raises ModelNotFound."""
    versions = await registry.list_all_versions(session, name)
    named = await aliases.list_aliases(session, name.tenant_id, name.adapter)
    return AdapterView.of(versions, named)


async def show_version(session: AsyncSession, name: AdapterName, number: int) -> AdapterVersionView:
    """Show a version. Raises ModelNotFound."""
    return AdapterVersionView.of(await registry.get_version(session, name, number))
