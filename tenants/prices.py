"""The price book: what tokens cost, from which time on. Entries are added, never changed.

A request is charged by the entry that holds when it is admitted, whatever is set while it runs.
"""

import re
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import audit
from loraplex.tenants.audit import Act
from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.ids import Entropy, new_id
from loraplex.tenants.money import MAX_PRICE_MICROS
from loraplex.tenants.quota_tables import LimitPolicy
from loraplex.tenants.scoped_limits import Dimension
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
    act: Act,
    entropy: Entropy,
) -> Price:
    """Add an entry, and tell it to the audit log. Of two that hold from the same time on, the one
    that was added later counts.

    Raises:
        ValueRefused: the currency is no code, or not that of the prices so far while budgets of
            money, which have none of their own, are set; a price is out of range, or the time is
            past: requests of that time have been charged.
    """
    now = act.at
    _check(currency, tokens, valid_from, now)
    await _check_same_currency(session, currency)
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
    detail = {"currency": currency, **asdict(tokens), "valid_from": valid_from.isoformat()}
    await audit.append(session, act, None, "price.set", row.id, detail)
    return _record(row)


async def price_at(session: AsyncSession, at: datetime) -> Price | None:
    """Return the price that holds at a time; None where none was set by then."""
    return next((each for each in await list_prices(session) if each.valid_from <= at), None)


async def unpriced(session: AsyncSession, dimension: Dimension, at: datetime) -> str | None:
    """Return what must be told of a limit that was just set, if it is of money and nothing has a
    price; else None."""
    if dimension != "cost_micros_per_month" or await price_at(session, at) is not None:
        return None
    return (
        "No price holds yet, and while none does every request that this limit is for is refused, "
        "unless it is in shadow mode; set one with: loraplex price set"
    )


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


def max_cost_pico(tokens: TokenPrices, prompt_tokens: int, completion_tokens: int) -> int:
    """Return what tokens cost at most, whatever of the prompt is cached."""
    dearest = max(tokens.prompt_micros, tokens.cached_micros)
    return prompt_tokens * dearest + completion_tokens * tokens.completion_micros


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


async def _check_same_currency(session: AsyncSession, currency: str) -> None:
    query = select(PriceRow.currency).where(PriceRow.currency != currency).limit(1)
    other = await session.scalar(query)
    of_money = select(LimitPolicy.id).where(LimitPolicy.dimension == "cost_micros_per_month")
    if other is not None and await session.scalar(of_money.limit(1)) is not None:
        raise ValueRefused(
            f"currency: prices so far are in {other}, and so are budgets of money; set the price "
            f"in {other}, or remove the limits cost_micros_per_month before you set it in "
            f"{currency}.",
            "currency",
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
