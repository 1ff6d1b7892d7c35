"""Money in whole numbers: prices in micros per million tokens, costs in picos. No floats.

Tokens × (10⁻⁶ of the currency per 10⁶ tokens) are 10⁻¹² of the currency: no division, no rounding.
"""

import re
from decimal import Decimal

from loraplex.tenants.errors import ValueRefused

PICO_DIGITS, MICRO_DIGITS = 12, 6
PICO_PER_MICRO = 1_000_000
MAX_PRICE_MICROS = 10**10
"""10,000 of the currency per million tokens: costs of single requests then fit 64 bits."""

_AMOUNT = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,12})?")


def micros_rounded_up(pico: int) -> int:
    """Return an amount in millionths of the currency, never less than it is."""
    return -(-pico // PICO_PER_MICRO)


def decimal_of(pico: int) -> str:
    """An amount in units of the currency, exactly: `1500000000000` pico is `1.5`."""
    return _decimal(pico, PICO_DIGITS)


def decimal_of_micros(micros: int) -> str:
    """A price per million tokens in units of the currency, exactly: `15000` is `0.015`."""
    return _decimal(micros, MICRO_DIGITS)


def micros_of(amount: str, field: str) -> int:
    """A price that a person wrote in units of the currency per million tokens.

    Raises:
        ValueRefused: it is no decimal number, or has more than six digits after the point.
    """
    micros = Decimal(amount).scaleb(MICRO_DIGITS) if _AMOUNT.fullmatch(amount) else None
    if micros is None or micros != int(micros):
        raise ValueRefused(
            f"{field} must be a number such as 0.15 with at most six digits after the point, "
            f"not {amount[:40]!r}.",
            field,
        )
    return int(micros)


def _decimal(amount: int, digits: int) -> str:
    sign = "-" if amount < 0 else ""
    whole, fraction = divmod(abs(amount), 10**digits)
    tail = f"{fraction:0{digits}d}".rstrip("0")
    return f"{sign}{whole}.{tail}" if tail else f"{sign}{whole}"
