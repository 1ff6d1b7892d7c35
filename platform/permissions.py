"""Which permission each route asks for: declared where the route is, checked in one way.

A route that declares none is a mistake that a test finds (`tests/platform/route_table.py`).
"""

from fastapi import params

from loraplex.platform.deps import Admin, Caller
from loraplex.tenants.roles import Permission


class Declared:
    """A dependency of a route that names the permission that the route needs."""

    def __init__(self, permission: Permission) -> None:
        self.permission: Permission = permission


class CallerMay(Declared):
    """Lets a tenant's key pass that has the permission."""

    async def __call__(self, caller: Caller) -> None:
        """Raises PermissionMissing, and what `Caller` does."""
        caller.check(self.permission)


class OperatorMay(Declared):
    """Lets an admin key pass whose role has the permission."""

    async def __call__(self, admin: Admin) -> None:
        """Raises PermissionMissing, and what `Admin` does."""
        admin.check(self.permission)


class WalkChecks(Declared):
    """For completions: their walk checks the permission, where it authenticates."""

    async def __call__(self) -> None:
        """Nothing is left to do here."""


def caller_may(permission: Permission) -> params.Depends:
    """For a route of tenants."""
    return params.Depends(CallerMay(permission))


def operator_may(permission: Permission) -> params.Depends:
    """For a route of operators."""
    return params.Depends(OperatorMay(permission))


def walk_checks(permission: Permission) -> params.Depends:
    """For a route of completions."""
    return params.Depends(WalkChecks(permission))
