"""What the settings say of a place that adapters may be imported from, and who may."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

PLACEHOLDER = "{tenant}"
ANYONE = "*"


def _or_its_url(schema: dict[str, Any]) -> None:
    whole = schema.copy()
    schema.clear()
    schema["oneOf"] = [{"type": "string"}, whole]


class ImportSource(BaseModel):
    """A place of adapters. The operator may import from each, for any tenant."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_or_its_url)

    url: str = Field(repr=False)
    """With `{tenant}` each tenant has a place of its own."""
    tenants: tuple[str, ...] = ()
    """Names of tenants that may import from it, or `*` for all; if empty, all where the URL has a
    place for each, and otherwise none."""
    use_hub_token: bool = False
    """Ask a hub with the gateway's own token, which may see what the tenants' could not."""

    @model_validator(mode="before")
    @classmethod
    def _of_url(cls, given: Any) -> Any:  # noqa: ANN401  what was written
        return {"url": given} if isinstance(given, str) else given

    def is_open_to(self, tenant: str) -> bool:
        """Whether a tenant of this name may import from it."""
        allowed = self.tenants or ((ANYONE,) if PLACEHOLDER in self.url else ())
        return tenant in allowed or ANYONE in allowed

    def url_of(self, tenant: str) -> str:
        """Where a tenant's adapters are; a tenant's name is a slug, so it leads nowhere else."""
        return self.url.replace(PLACEHOLDER, tenant)
