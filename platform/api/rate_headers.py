"""The headers that tell a client what is left of its limits, as of its admission."""

from loraplex.platform.errors import Headers
from loraplex.tenants.quotas import Hold, Rate


def rate_headers(hold: Hold) -> Headers:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`."""
    return [*_headers("requests", hold.requests_rate), *_headers("tokens", hold.tokens_rate)]


def duration(seconds: float) -> str:
    """A time as these headers write it: `12ms`, `1s`, `6m0s`; never less than it is."""
    milliseconds = -(-seconds * 1000 // 1)
    if milliseconds < 1000:
        return f"{milliseconds:.0f}ms"
    whole_s = int(-(-seconds // 1))
    return f"{whole_s}s" if whole_s < 60 else f"{whole_s // 60}m{whole_s % 60}s"


def _headers(noun: str, rate: Rate) -> Headers:
    values = {"limit": rate.limit, "remaining": rate.remaining, "reset": duration(rate.reset_s)}
    return [
        (f"x-ratelimit-{what}-{noun}".encode(), str(value).encode())
        for what, value in values.items()
    ]
