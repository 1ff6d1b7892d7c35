"""Errors of tenants, keys, quotas, the ledger and their database. No HTTP here.

TenantsError
├── DatabaseError
│   ├── DatabaseUnusable    cannot be opened, written or migrated, and why
│   └── DatabaseTooNew      was migrated by a newer version of this program
├── SecretUnusable          the secret is missing, too short, readable by others or another one
├── NameInvalid             a name is not a slug
├── ValueRefused            a value is out of its range; `field` names it
├── ExceedsParent           what is given is more than the giver, or what it belongs to, has
├── PermissionMissing       whoever asks has no permission for it
├── TenantExists, TenantNotFound
├── ProjectExists, ProjectNotFound
├── ProjectProtected        the project must stay as it is
├── KeyNotFound             no such key of this tenant
├── KeyEnded                the key was revoked, and cannot be changed any more
├── LimitNotFound           no such limit
├── SelfWidening            a key would change what itself may do
├── KeyRefused              a request's key does not open the door
│   ├── KeyMalformed, KeyUnknown, KeyRevoked, KeyExpired
│   ├── AddressRefused      the key is not for the address that the request comes from
│   ├── ProjectArchived
│   └── TenantSuspended
├── PersonError
│   ├── PersonExists, PersonNotFound, MembershipNotFound
│   ├── LastOwner           the platform would have no owner any more
│   ├── SignInRefused       a person may not sign in; the message tells no more than it must
│   └── PasswordsBusy       too many passwords wait to be compared (retry later)
├── QuotaError
│   ├── QuotaExceeded       too much for now (retry later)
│   ├── BudgetExhausted     too much until the month is over
│   ├── RequestExceedsLimit too much for ever (never retried)
│   ├── BudgetsUnknown      the store does not know what was used: reckon it from the database
│   ├── QuotaBackendUnavailable the store that gateways share cannot be used, and why
│   │   └── QuotaStateUnreadable it serves, but cannot read what it has of one tenant
│   └── HoldConflict        the request id already holds something else
├── IdempotencyInProgress   the first POST with this key has not been answered yet
├── IdempotencyKeyReused    the key came with another POST before
└── UsageConflict           the request id is already in the ledger with other figures
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loraplex.tenants.scoped_limits import ScopedLimit
    from loraplex.tenants.standings import Standing


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


class ExceedsParent(ValueRefused):
    """A child would have more than its parent; the message names what the parent has."""


class PermissionMissing(TenantsError):
    """Whoever asks is known, and may not do this; `permission` names what is missing."""

    def __init__(self, permission: str, told: str | None = None) -> None:
        super().__init__(
            told
            or f"This needs the permission {permission}, which the key does not have; "
            "ask for it, or use another key."
        )
        self.permission = permission


class TenantExists(TenantsError):
    """A tenant of this name exists."""


class TenantNotFound(TenantsError):
    """No tenant has this name or id."""


class ProjectExists(TenantsError):
    """The tenant has a project of this name."""


class ProjectNotFound(TenantsError):
    """The tenant has no project of this name or id."""


class ProjectProtected(TenantsError):
    """The default project keeps its name, and keys need one that is active."""


class KeyNotFound(TenantsError):
    """The tenant has no key of this id."""


class KeyEnded(TenantsError):
    """The key was revoked: it is never changed again."""


class LimitNotFound(TenantsError):
    """There is no such limit."""


class SelfWidening(TenantsError):
    """A key would change its own scopes or limits, which is for others to do."""


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


class AddressRefused(KeyRefused):
    """The key is good, but not for the address that the request comes from."""


class ProjectArchived(KeyRefused):
    """The key is good, its project is archived."""


class TenantSuspended(KeyRefused):
    """The key is good, its tenant is suspended."""


class PersonError(TenantsError):
    """Something about people and their roles."""


class PersonExists(PersonError):
    """Somebody has this e-mail address."""


class PersonNotFound(PersonError):
    """No person has this id or e-mail address."""


class MembershipNotFound(PersonError):
    """The person has no role there."""


class LastOwner(PersonError):
    """The platform would have no owner any more."""


class SignInRefused(PersonError):
    """A person may not sign in."""


class PasswordsBusy(PersonError):
    """So many passwords wait to be compared that another one is not taken."""

    def __init__(self) -> None:
        super().__init__("Too many people sign in just now; try again in a few seconds.")
        self.retry_after_s = 2.0


class QuotaError(TenantsError):
    """A reservation was not made; `standings` is how its limits stood then, where that is known."""

    standings: "tuple[Standing, ...]" = ()


class QuotaExceeded(QuotaError):
    """A limit is used up for now; `retry_after_s` is when this reservation could fit."""

    def __init__(self, limit: "ScopedLimit", retry_after_s: float) -> None:
        super().__init__(f"{limit.told} is reached; try again in {retry_after_s:.3f} s.")
        self.limit = limit
        self.retry_after_s = retry_after_s


class BudgetExhausted(QuotaError):
    """What is left of a budget is less than the request may take, until `resets_at`."""

    def __init__(self, limit: "ScopedLimit", resets_at: datetime) -> None:
        super().__init__(
            f"{limit.told} has no room for this request; the next month begins at "
            f"{resets_at:%Y-%m-%dT%H:%M:%SZ}. Raise the limit, or lower max_tokens."
        )
        self.limit = limit
        self.resets_at = resets_at
        """In UTC."""


class RequestExceedsLimit(QuotaError):
    """The request alone is larger than a whole limit, so that no retry can ever succeed."""

    def __init__(self, limit: "ScopedLimit", asked: int) -> None:
        remedy = "lower n" if limit.dimension == "concurrency" else "lower max_tokens or the prompt"
        super().__init__(
            f"{limit.told} is smaller than this request, which may take {limit.shown(asked)}; "
            f"{remedy}, or raise the limit."
        )
        self.limit = limit
        self.asked = asked


class BudgetsUnknown(QuotaError):
    """The store has no use of these budgets, or of another epoch; `Quotas.seed` tells it."""

    def __init__(self, limits: "Sequence[ScopedLimit]") -> None:
        named = ", ".join(limit.name for limit in limits)
        super().__init__(f"The use of these budgets has to be reckoned first: {named}.")
        self.limits = tuple(limits)


class QuotaBackendUnavailable(QuotaError):
    """The quota store does not answer or refuses to; whether something was held is not known."""


class QuotaStateUnreadable(QuotaBackendUnavailable):
    """The quota store serves, but its scripts fail on what it has of this tenant."""


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
