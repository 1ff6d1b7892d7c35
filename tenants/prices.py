"""The price book: what tokens cost, from which time on. Entries are added, never changed.

A request is charged by the entry that holds when it is admitted, whatever is set while it runs.
"""

import re
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.ids import Entropy, new_id
from loraplex.tenants.money import MAX_PRICE_MICROS
from loraplex.tenants.tables import PriceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrices:
    """Micros of the currency per million tokens of each kind."""

    prompt_micros: int
    """Prompt tokens that were computed."""
    cached_micros: int
    """Prompt tokens that came from the prefix cache."""
    completion_micros: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One entry of the book; it holds from `valid_from` until a later one does."""

    id: str
    currency: str
    """Three letters, as ISO 4217 has them."""
    tokens: TokenPrices
    valid_from: datetime
    created_at: datetime


async def set_price(
    session: AsyncSession,
    currency: str,
    tokens: TokenPrices,
    valid_from: datetime,
    now: datetime,
    entropy: Entropy,
) -> Price:
    """Add an entry; of two that hold from the same time on, the one that was added later counts.

    Raises:
        ValueRefused: the currency is no code, a price is out of range, or the time is past:
            requests of that time have been charged.
    """
    _check(currency, tokens, valid_from, now)
    row = PriceRow(
        id=new_id("prc", now, entropy),
        currency=currency,
        prompt_micros=tokens.prompt_micros,
        cached_micros=tokens.cached_micros,
        completion_micros=tokens.completion_micros,
        valid_from=valid_from,
        created_at=now,
    )
    session.add(row)
    await session.flush()
    return _record(row)


async def current_price(session: AsyncSession, at: datetime) -> Price | None:
    """Return the entry that holds at a time; None before the first."""
    row = await session.scalar(
        select(PriceRow)
        .where(PriceRow.valid_from <= at)
        .order_by(PriceRow.valid_from.desc(), PriceRow.created_at.desc(), PriceRow.id.desc())
        .limit(1)
    )
    return None if row is None else _record(row)


async def list_prices(session: AsyncSession) -> list[Price]:
    """Return all entries, those that hold last first."""
    rows = await session.scalars(
        select(PriceRow).order_by(
            PriceRow.valid_from.desc(), PriceRow.created_at.desc(), PriceRow.id.desc()
        )
    )
    return [_record(row) for row in rows]


def cost_pico(
    tokens: TokenPrices, prompt_tokens: int, cached_tokens: int, completion_tokens: int
) -> int:
    """Return what tokens cost, in 10⁻¹² of the currency; `cached_tokens` are prompt tokens too."""
    return (
        (prompt_tokens - cached_tokens) * tokens.prompt_micros
        + cached_tokens * tokens.cached_micros
        + completion_tokens * tokens.completion_micros
    )


def _check(currency: str, tokens: TokenPrices, valid_from: datetime, now: datetime) -> None:
    if not re.fullmatch(r"[A-Z]{3}", currency):
        raise ValueRefused(
            f"currency must be three capital letters, such as EUR, not {currency[:40]!r}.",
            "currency",
        )
    for field in ("prompt_micros", "cached_micros", "completion_micros"):
        value = getattr(tokens, field)
        if not 0 <= value <= MAX_PRICE_MICROS:
            raise ValueRefused(f"{field} must be 0 to {MAX_PRICE_MICROS}, not {value}.", field)
    if valid_from < now:
        raise ValueRefused(
            f"A price cannot hold from {valid_from.isoformat()} on, which is past: requests of "
            "that time have been charged.",
            "valid_from",
        )


def _record(row: PriceRow) -> Price:
    return Price(
        id=row.id,
        currency=row.currency,
        tokens=TokenPrices(
            prompt_micros=row.prompt_micros,
            cached_micros=row.cached_micros,
            completion_micros=row.completion_micros,
        ),
        valid_from=row.valid_from,
        created_at=row.created_at,
    )
