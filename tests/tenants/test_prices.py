"""Money is exact, and a price holds from a time on."""

import secrets
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.billing import BillingPeriod
from loraplex.tenants.db import Database
from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.money import MAX_PRICE_MICROS, decimal_of, decimal_of_micros, micros_of
from loraplex.tenants.prices import Price, TokenPrices, cost_pico, list_prices, set_price

TOKENS = TokenPrices(prompt_micros=150_000, cached_micros=15_000, completion_micros=600_000)


async def add(
    database: Database,
    now: datetime,
    valid_from: datetime,
    currency: str = "EUR",
    tokens: TokenPrices = TOKENS,
) -> Price:
    async with database.session() as session:
        return await set_price(
            session, currency, tokens, valid_from, Act(CLI, now), secrets.token_bytes
        )


async def price_at(database: Database, moment: datetime) -> Price | None:
    async with database.reader() as session:
        return next((p for p in await list_prices(session) if p.valid_from <= moment), None)


@given(st.integers(-(10**40), 10**40))
def test_amounts_are_written_exactly(pico: int) -> None:
    text = decimal_of(pico)
    assert int(Decimal(text).scaleb(12, context=None) if abs(pico) < 10**15 else pico) == pico
    whole, _, fraction = text.partition(".")
    assert int(whole + fraction.ljust(12, "0")) == pico


def test_amounts_have_no_zeros_at_the_end() -> None:
    assert [decimal_of(n) for n in (0, 1, -1, 10**12, 15 * 10**11)] == [
        "0",
        "0.000000000001",
        "-0.000000000001",
        "1",
        "1.5",
    ]


@given(st.integers(0, MAX_PRICE_MICROS))
def test_a_price_is_read_as_it_is_written(micros: int) -> None:
    assert micros_of(decimal_of_micros(micros), "prompt") == micros


@pytest.mark.parametrize("text", ["", "a", "-1", "1e3", "0.0000001", "1.", ".5", "1,5", "nan", "٣"])
def test_a_price_that_is_no_exact_number_of_micros_is_refused(text: str) -> None:
    with pytest.raises(ValueRefused, match="six digits"):
        micros_of(text, "prompt")


def test_a_token_costs_its_price_in_millionths() -> None:
    assert cost_pico(TOKENS, 1, 0, 0) == 150_000
    assert cost_pico(TOKENS, 12, 8, 5) == 4 * 150_000 + 8 * 15_000 + 5 * 600_000


async def test_before_the_first_price_there_is_none(database: Database, now: datetime) -> None:
    await add(database, now, now)
    assert await price_at(database, now - timedelta(microseconds=1)) is None


async def test_a_price_holds_until_a_later_one_does(database: Database, now: datetime) -> None:
    first = await add(database, now, now)
    second = await add(database, now, now + timedelta(days=1))
    assert await price_at(database, now) == first
    assert await price_at(database, now + timedelta(days=1, microseconds=-1)) == first
    assert await price_at(database, now + timedelta(days=1)) == second


async def test_of_two_prices_from_one_time_on_the_later_entry_counts(
    database: Database, now: datetime
) -> None:
    start = now + timedelta(days=1)
    await add(database, now, start)
    corrected = await add(database, now + timedelta(hours=1), start, "USD")
    assert await price_at(database, start) == corrected


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"currency": "euro"}, "currency"),
        ({"currency": "EÜR"}, "currency"),
        ({"tokens": TokenPrices(prompt_micros=-1, cached_micros=0, completion_micros=0)}, "prompt"),
        (
            {
                "tokens": TokenPrices(
                    prompt_micros=0, cached_micros=0, completion_micros=MAX_PRICE_MICROS + 1
                )
            },
            "completion",
        ),
        ({"valid_from": datetime(2020, 1, 1, tzinfo=UTC)}, "valid_from"),
    ],
)
async def test_an_impossible_price_is_refused(
    database: Database, now: datetime, change: dict, field: str
) -> None:
    with pytest.raises(ValueRefused) as refused:
        await add(database, now, **({"valid_from": now} | change))
    assert refused.value.field.startswith(field)


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        ("2026-11", datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)),
        ("2026-12", datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)),
        ("2028-02", datetime(2028, 2, 1, tzinfo=UTC), datetime(2028, 3, 1, tzinfo=UTC)),
    ],
)
def test_a_period_is_a_month_in_utc(name: str, start: datetime, end: datetime) -> None:
    period = BillingPeriod.parse(name)
    assert (period.start, period.end) == (start, end)


@pytest.mark.parametrize("name", ["2026-13", "2026-00", "2026-1", "26-01", "2026-11-01", "٢٠٢٦-11"])
def test_what_is_no_month_is_refused(name: str) -> None:
    with pytest.raises(ValueRefused, match="2026-11"):
        BillingPeriod.parse(name)
