"""What each role may do: the one table that routes of the API and of the console are checked by."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from loraplex.tenants.errors import PermissionMissing

Role = Literal["owner", "operator", "finance", "tenant_admin", "developer", "read_only"]
"""The first three are the platform's; `tenant_admin` and `developer` are a tenant's; `read_only`
is either's, and sees what its side sees."""
PlatformRole = Literal["owner", "operator", "finance", "read_only"]
TenantRole = Literal["tenant_admin", "developer", "read_only"]

Permission = Literal[
    "inference",
    "models.read",
    "adapters.read",
    "adapters.write",
    "usage.read",
    "limits.read",
    "limits.write",
    "budgets.write",
    "projects.read",
    "projects.write",
    "keys.read",
    "keys.write",
    "people.read",
    "people.write",
    "audit.read",
    "tenants.read",
    "tenants.write",
    "prices.read",
    "prices.write",
    "platform.read",
    "platform.write",
    "owners.write",
]
"""`budgets.write` corrects what a budget has used; `owners.write` makes keys and memberships of the
platform's own roles."""

Permissions = frozenset[Permission]

ALL: Permissions = frozenset(get_args(Permission))
_READ: Permissions = frozenset(p for p in ALL if p.endswith(".read"))
_FINANCE: Permissions = frozenset(
    (
        *("tenants.read", "projects.read", "usage.read", "limits.read", "audit.read"),
        *("prices.read", "prices.write", "budgets.write"),
    )
)
_TENANT_READ: Permissions = _READ - {"tenants.read", "prices.read", "platform.read"}
_DEVELOPER: Permissions = _TENANT_READ - {"keys.read", "people.read"} | {
    "inference",
    "adapters.write",
}
_TENANT_ADMIN: Permissions = (
    _TENANT_READ | _DEVELOPER | {"limits.write", "projects.write", "keys.write", "people.write"}
)

PLATFORM_GRANTS: Mapping[Role, Permissions] = MappingProxyType(
    {
        "owner": ALL - {"inference"},
        "operator": ALL - {"inference", "owners.write", "prices.write"},
        "finance": _FINANCE,
        "read_only": _READ,
    }
)
"""What somebody may do on the whole platform, in every tenant. Completions are a tenant's: it pays
for them."""

TENANT_GRANTS: Mapping[Role, Permissions] = MappingProxyType(
    {"tenant_admin": _TENANT_ADMIN, "developer": _DEVELOPER, "read_only": _TENANT_READ}
)
"""What somebody may do inside one tenant."""


def check(held: Permissions, needed: Permission) -> None:
    """Let pass whoever holds the permission; the one place where that is decided.

    Raises:
        PermissionMissing: it is not held.
    """
    if needed not in held:
        raise PermissionMissing(needed)
