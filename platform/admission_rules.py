"""Whom an issuer's word admits, and to which role, at each sign-in; part of the settings."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

_PLATFORM, _TENANT = (
    ("operator", "finance", "read_only"),
    ("tenant_admin", "developer", "read_only"),
)


class AdmissionRule(BaseModel):
    """People of an e-mail domain, or with a value of a claim, have a role as long as that is so."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    email_domain: str | None = None
    claim: str | None = None
    """Name of a claim of the ID token: a text, or a list of texts."""
    value: str | None = None
    """What the claim must be, or have among its texts."""
    role: Literal["operator", "finance", "tenant_admin", "developer", "read_only"]
    """The platform's owners are made by owners alone."""
    tenant: str | None = None
    """Name of the tenant in which the role is; None for the platform's roles."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        by_domain, by_claim = self.email_domain is not None, self.claim is not None
        if by_domain == by_claim or by_claim != (self.value is not None):
            raise ValueError("a rule has either email_domain, or claim and value")
        roles = _PLATFORM if self.tenant is None else _TENANT
        if self.role not in roles:
            place = "with" if self.tenant is not None else "without"
            raise ValueError(f"{place} a tenant, role must be one of {', '.join(roles)}")
        return self

    def admits(self, email: str, claims: dict[str, object]) -> bool:
        """True if the rule is about somebody of this verified address and these claims."""
        if self.email_domain is not None:
            return email.rpartition("@")[2] == self.email_domain.lower()
        held = claims.get(self.claim or "")
        return self.value in held if isinstance(held, list) else held == self.value
