"""The form of a tenant's share of the machine, and of its deadline."""

from loraplex.platform.console.access import Form
from loraplex.platform.console.errors import FormRefused
from loraplex.tenants.errors import ValueRefused

FIELDS = ("weight", "ttft_deadline_ms")


def weight_of(form: Form) -> float:
    """The tenant's share of the machine. Raises ValueRefused."""
    text = form.text("weight")
    try:
        return float(text)
    except ValueError:
        raise ValueRefused(f"{text[:40]!r} is not a number.", "weight") from None


def deadline_of(form: Form) -> int | None:
    """The deadline of requests that name none. Raises ValueRefused."""
    try:
        return form.integer("ttft_deadline_ms")
    except FormRefused as error:
        raise ValueRefused(f"{error} Leave it empty for none.", "ttft_deadline_ms") from None
