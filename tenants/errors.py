"""Errors of tenants, keys, quotas, the ledger and their database. No HTTP here.

TenantsError
├── DatabaseError
│   ├── DatabaseUnusable    cannot be opened, written or migrated, and why
│   └── DatabaseTooNew      was migrated by a newer version of this program
├── SecretUnusable          the secret is missing, too short, readable by others or another one
├── NameInvalid             a name is not a slug
├── ValueRefused            a value is out of its range; `field` names it
├── TenantExists, TenantNotFound
├── KeyNotFound             no such key of this tenant
├── KeyRefused              a request's key does not open the door
│   ├── KeyMalformed, KeyUnknown, KeyRevoked, KeyExpired
│   └── TenantSuspended
├── QuotaError
│   ├── QuotaExceeded       too much for now (retry later)
│   ├── RequestExceedsLimit too much for ever (never retried)
│   ├── QuotaBackendUnavailable the store that gateways share cannot be used, and why
│   └── HoldConflict        the request id already holds something else
├── IdempotencyInProgress   the first POST with this key has not been answered yet
├── IdempotencyKeyReused    the key came with another POST before
└── UsageConflict           the request id is already in the ledger with other figures
"""

from typing import Literal

Dimension = Literal["requests", "tokens", "concurrency"]


class TenantsError(Exception):
    """Root of all errors of this package; messages never hold a key or a secret."""


class DatabaseError(TenantsError):
    """The database does not serve."""


class DatabaseUnusable(DatabaseError):
    """The database cannot be opened, written or migrated; the message says why."""


class DatabaseTooNew(DatabaseError):
    """The database has migrations that this version of the program does not know."""


class SecretUnusable(TenantsError):
    """The secret that keys are hashed with is unreadable, too short, exposed or another one."""


class NameInvalid(TenantsError):
    """A name is not a slug."""


class ValueRefused(TenantsError):
    """A value is out of its range; `field` names it."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class TenantExists(TenantsError):
    """A tenant of this name exists."""


class TenantNotFound(TenantsError):
    """No tenant has this name or id."""


class KeyNotFound(TenantsError):
    """The tenant has no key of this id."""


class KeyRefused(TenantsError):
    """The key that came with a request does not authenticate it."""


class KeyMalformed(KeyRefused):
    """The text is no key of ours, or has a typo; found without asking the database."""


class KeyUnknown(KeyRefused):
    """Well formed, but no key has this id and secret."""


class KeyRevoked(KeyRefused):
    """The key was revoked."""


class KeyExpired(KeyRefused):
    """The key's time is over."""


class TenantSuspended(KeyRefused):
    """The key is good, its tenant is suspended."""


class QuotaError(TenantsError):
    """A reservation was not made."""


class QuotaExceeded(QuotaError):
    """A limit is used up for now; `retry_after_s` is when this reservation could fit."""

    def __init__(self, dimension: Dimension, limit: int, retry_after_s: float) -> None:
        per = "at a time" if dimension == "concurrency" else "per minute"
        noun = "requests" if dimension == "concurrency" else dimension
        super().__init__(
            f"The tenant's limit of {limit} {noun} {per} is reached; "
            f"try again in {retry_after_s:.3f} s."
        )
        self.dimension: Dimension = dimension
        self.limit = limit
        self.retry_after_s = retry_after_s


class RequestExceedsLimit(QuotaError):
    """The request alone is larger than a whole limit, so that no retry can ever succeed."""

    def __init__(self, dimension: Dimension, limit: int, asked: int) -> None:
        super().__init__(
            f"The request asks for {asked} choices, but the tenant's limit is {limit} at a time; "
            "lower n."
            if dimension == "concurrency"
            else f"The request may need {asked} {dimension}, but the tenant's limit is {limit} "
            f"{dimension} per minute; lower max_tokens or shorten the prompt."
        )
        self.dimension: Dimension = dimension
        self.limit = limit
        self.asked = asked


class QuotaBackendUnavailable(QuotaError):
    """The quota store does not answer or refuses to; whether something was held is not known."""


class HoldConflict(QuotaError):
    """The request id already holds a reservation of another tenant or size."""


class UsageConflict(TenantsError):
    """The request id is in the ledger with other figures."""


class IdempotencyInProgress(TenantsError):
    """The first request with this idempotency key has not been answered yet."""

    def __init__(self) -> None:
        super().__init__("A request with this Idempotency-Key is being served; try again.")
        self.retry_after_s = 1.0


class IdempotencyKeyReused(TenantsError):
    """The idempotency key came with another request before."""

    def __init__(self) -> None:
        super().__init__(
            "This Idempotency-Key came with another request in the last 24 hours; a new request "
            "needs a new key."
        )
