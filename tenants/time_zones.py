"""Time zones by name, as people give them."""

from zoneinfo import ZoneInfo

from loraplex.tenants.errors import ValueRefused


def zone_named(name: str) -> ZoneInfo:
    """Return the zone of this IANA name. Raises ValueRefused."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueRefused(
            f"time_zone {name[:60]!r} is not known; use an IANA name, such as Europe/Berlin.",
            "time_zone",
        ) from None
