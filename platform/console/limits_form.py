"""The form of a tenant's limits."""

from loraplex.platform.console.access import Form
from loraplex.platform.console.errors import FormRefused
from loraplex.platform.services import Services
from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.limits import Limits, TenantLimits

FIELDS = ("requests_per_minute", "tokens_per_minute", "concurrency", "ttft_deadline_ms")


def default_limits(services: Services) -> Limits:
    """What holds for a tenant that has no limits of its own."""
    settings = services.resources.settings
    return Limits(
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        concurrency=settings.concurrency,
    )


def limits_of(form: Form) -> TenantLimits:
    """The limits that were filled in. Raises ValueRefused, which names the field."""
    values: dict[str, int | None] = {}
    for field in FIELDS:
        try:
            values[field] = form.integer(field)
        except FormRefused as error:
            raise ValueRefused(f"{error} Leave it empty for the default.", field) from None
    return TenantLimits(**values)


def weight_of(form: Form) -> float:
    """The tenant's share of the machine. Raises ValueRefused."""
    text = form.text("weight")
    try:
        return float(text)
    except ValueError:
        raise ValueRefused(f"{text[:40]!r} is not a number.", "weight") from None
