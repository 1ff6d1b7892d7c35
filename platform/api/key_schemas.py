"""Bodies of requests that make and change API keys."""

from datetime import timedelta
from typing import Any

from pydantic import Field

from loraplex.platform.api.bodies import Schema
from loraplex.platform.api.moments import Moment
from loraplex.tenants.key_changes import DEFAULT_GRACE, KeyChange, NewKey
from loraplex.tenants.key_scopes import scopes_from
from loraplex.tenants.projects import DEFAULT


class ScopesFields(Schema):
    """What a key may; null or absent narrows nothing."""

    role: str = "developer"
    """`tenant_admin`, `developer` or `read_only`."""
    permissions: list[str] | None = None
    """Of what its role may."""
    models: list[str] | None = None
    """Of those of its project: a base model, `tenant/adapter`, or a version, `tenant/adapter@3`."""
    addresses: list[str] | None = None
    """Networks that its requests may come from, such as `10.0.0.0/8` or `2001:db8::/32`."""

    def named_scopes(self) -> dict[str, Any]:
        """The scopes that the body names."""
        named = self.model_fields_set & ScopesFields.model_fields.keys()
        return self.model_dump(include=set(named))


class KeyBody(ScopesFields):
    """A new API key."""

    label: str = ""
    project: str = DEFAULT
    """Name or id of its project."""
    expires_at: Moment | None = None

    def new_key(self) -> NewKey:
        """What is asked for. Raises ValueRefused."""
        return NewKey(self.label, self.project, scopes_from(self.named_scopes()), self.expires_at)


class KeyChangeBody(ScopesFields):
    """What changes of a key; what is absent stays as it is."""

    label: str = ""
    project: str = DEFAULT
    """Name or id of the project that it moves to."""
    expires_at: Moment | None = None
    """Null lets it never expire."""

    def change(self) -> KeyChange:
        """What is asked for."""
        fields = {
            name: getattr(self, name)
            for name in self.model_fields_set & {"label", "project", "expires_at"}
        }
        return KeyChange(**fields, scopes=self.named_scopes())


class RotationBody(Schema):
    """How long the secret before opens, too."""

    grace_s: int = Field(default=int(DEFAULT_GRACE.total_seconds()), ge=-(10**9), le=10**9)
    """0 to 30 days; 0 ends it at once."""

    def grace(self) -> timedelta:
        """As a span of time."""
        return timedelta(seconds=self.grace_s)
