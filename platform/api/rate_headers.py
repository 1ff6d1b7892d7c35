"""The headers that tell a client how its limits stand, as of its admission.

OpenAI's names, which tools read, tell of the tightest limit per minute; those of the IETF's draft
(draft-ietf-httpapi-ratelimit-headers) of all limits that can refuse.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from loraplex.platform.error_replies import Headers
from loraplex.tenants.scoped_limits import Dimension, ScopedLimit
from loraplex.tenants.standings import Standing

_NOUNS: Mapping[Dimension, str] = MappingProxyType(
    {
        "requests_per_minute": "requests",
        "tokens_per_minute": "tokens",
        "input_tokens_per_minute": "tokens",
        "output_tokens_per_minute": "tokens",
    }
)
"""What OpenAI's headers tell of a limit under."""
_UNITS: Mapping[Dimension, str] = MappingProxyType(
    {
        "requests_per_minute": "requests",
        "concurrency": "concurrent-requests",
        "cost_micros_per_month": "cost-micros",
    }
)
"""Of the draft, which registers the first two; all other dimensions are of `tokens`."""
_MAX_INTEGER = 999_999_999_999_999
"""The largest that a structured field has (RFC 9651, 3.3.1)."""
_MINUTE_S = 60


def rate_headers(standings: Sequence[Standing]) -> Headers:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, each of the limit that is left the
    least part of, `RateLimit-Policy` and `RateLimit`. Limits in shadow mode are not told."""
    enforced = [each for each in standings if each.limit.mode == "enforce"]
    headers: Headers = []
    for noun in ("requests", "tokens"):
        rates = [each for each in enforced if _NOUNS.get(each.limit.dimension) == noun]
        if rates:
            headers += _tightest(noun, min(rates, key=_left))
    if enforced:
        policies = ", ".join(_policy(each.limit) for each in enforced)
        states = ", ".join(_state(each) for each in enforced)
        headers += [
            (b"ratelimit-policy", policies.encode()),
            (b"ratelimit", states.encode()),
        ]
    return headers


def shadow_headers(shadowed: Iterable[ScopedLimit]) -> Headers:
    """Which limits in shadow mode would have refused the request."""
    names = ", ".join(limit.name for limit in shadowed)
    return [(b"x-loraplex-shadowed-limits", names.encode())] if names else []


def duration(seconds: float) -> str:
    """A time as these headers write it: `12ms`, `1s`, `6m0s`; never less than it is."""
    milliseconds = -(-seconds * 1000 // 1)
    if milliseconds < 1000:
        return f"{milliseconds:.0f}ms"
    whole_s = int(-(-seconds // 1))
    return f"{whole_s}s" if whole_s < 60 else f"{whole_s // 60}m{whole_s % 60}s"


def _left(standing: Standing) -> float:
    return standing.remaining / standing.limit.burst


def _tightest(noun: str, rate: Standing) -> Headers:
    values = {
        "limit": rate.limit.burst,
        "remaining": max(rate.remaining, 0),
        "reset": duration(rate.reset_s),
    }
    return [
        (f"x-ratelimit-{what}-{noun}".encode(), str(value).encode())
        for what, value in values.items()
    ]


def _policy(limit: ScopedLimit) -> str:
    """A rate with a burst is told as what it is: so much in the time that it takes to refill."""
    quota = limit.value if limit.kind == "gauge" else limit.burst
    told = f'"{limit.name}";q={min(quota, _MAX_INTEGER)}'
    if limit.kind == "rate":
        told += f";w={-(-limit.burst * _MINUTE_S // limit.value)}"
    elif limit.budget is not None:
        period = limit.budget.period
        told += f";w={round((period.end - period.start).total_seconds())}"
    return f'{told};qu="{_UNITS.get(limit.dimension, "tokens")}"'


def _state(standing: Standing) -> str:
    told = f'"{standing.limit.name}";r={min(max(standing.remaining, 0), _MAX_INTEGER)}'
    # When a gauge has room depends on others.
    return told if standing.limit.kind == "gauge" else f"{told};t={math.ceil(standing.reset_s)}"
