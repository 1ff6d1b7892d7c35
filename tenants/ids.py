"""Identifiers that sort by time, and names that are slugs."""

import re
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from loraplex.tenants.errors import NameInvalid

Entropy = Callable[[int], bytes]
"""Returns that many random bytes; `secrets.token_bytes` outside tests."""

SLUG = r"[a-z0-9][a-z0-9-]{0,39}"


def new_id(prefix: str, now: datetime, entropy: Entropy) -> str:
    """Return `prefix_` and a UUID version 7 (RFC 9562) in hex: milliseconds and 74 random bits."""
    milliseconds = int(now.timestamp() * 1000)
    random_bits = int.from_bytes(entropy(10))
    rand_a, rand_b = random_bits >> 68, random_bits & ((1 << 62) - 1)
    value = milliseconds << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b
    return f"{prefix}_{UUID(int=value).hex}"


def check_slug(name: str, what: str) -> str:
    """Return `name` if it is a slug.

    Raises:
        NameInvalid: it is not.
    """
    if not re.fullmatch(SLUG, name):
        raise NameInvalid(
            f"{what} {name[:60]!r} is not valid: 1 to 40 characters of a-z, 0-9 and '-', "
            "the first not '-'."
        )
    return name
