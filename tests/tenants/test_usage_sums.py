"""Sums over the ledger: exact, and the same in whatever order rows were written."""

import asyncio
import secrets
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loraplex.tenants import api_keys, directory, ledger
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.db import Database
from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.ledger import UsageFilter, UsageRecord, find_usage, stream_usage
from loraplex.tenants.prices import TokenPrices, set_price
from loraplex.tenants.projects import default_project_id
from loraplex.tenants.usage_sums import sum_usage

START = datetime(2026, 11, 30, 22, tzinfo=UTC)
MAX_PICO = (1 << 63) - 1
DRAWN = st.tuples(
    st.integers(0, 3),  # hours after START
    st.sampled_from(["acme", "globex"]),
    st.sampled_from(["tiny", "acme/support@1", "acme/support@2"]),
    st.integers(0, 1000),
    st.sampled_from([0, 1, 10**9 - 1, 10**9, MAX_PICO]),
    st.sampled_from(["EUR", "USD", None]),
)


class Book:
    """A database with two tenants and two prices."""

    async def open(self, url: str) -> "Book":
        self.database = Database.open(url)
        tokens = TokenPrices(prompt_micros=1, cached_micros=1, completion_micros=1)
        self.owners: dict[str, tuple[str, str]] = {}
        self.prices: dict[str | None, str | None] = {None: None}
        async with self.database.session() as session:
            for name in ("acme", "globex"):
                owner = await directory.create(session, name, START, secrets.token_bytes)
                key = await api_keys.mint(session, owner, "", bytes(32), START, secrets.token_bytes)
                self.owners[name] = (owner.id, key.key_id)
            for currency in ("EUR", "USD"):
                price = await set_price(
                    session, currency, tokens, START, Act(CLI, START), secrets.token_bytes
                )
                self.prices[currency] = price.id
        return self

    def record(self, number: int, drawn: tuple) -> UsageRecord:
        hours, tenant, model, num_tokens, cost, currency = drawn
        tenant_id, key_id = self.owners[tenant]
        accepted_at = START + timedelta(hours=hours, microseconds=number % 3)
        return UsageRecord(
            request_id=f"req_{number:04d}",
            tenant_id=tenant_id,
            project_id=default_project_id(tenant_id),
            key_id=key_id,
            requested_model=model,
            model=model,
            adapter_digest=None,
            prompt_tokens=num_tokens,
            cached_tokens=num_tokens // 2,
            completion_tokens=num_tokens // 3,
            finish_reason="stop",
            accepted_at=accepted_at,
            first_token_at=None,
            finished_at=accepted_at,
            queue_ms=0.0,
            price_id=self.prices[currency],
            currency=currency,
            cost_pico=0 if currency is None else cost,
        )

    async def append(self, records: list[UsageRecord]) -> None:
        async with self.database.session() as session:
            for record in records:
                await ledger.append(session, record)

    async def sums(self, by: frozenset = frozenset()) -> list:
        async with self.database.reader() as session:
            return await sum_usage(session, UsageFilter(), by)

    async def stream(self) -> list[UsageRecord]:
        async with self.database.snapshot() as session:
            return [record async for record in stream_usage(session, UsageFilter())]


@pytest.fixture
async def book(database_url: str):
    book = await Book().open(database_url)
    yield book
    await book.database.close()


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=st.lists(DRAWN, max_size=12), data=st.data())
def test_any_order_of_rows_gives_the_identical_exact_total(
    migrated_file: Path, drawn: list, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(drawn))))

    async def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(shutil.copy(migrated_file, Path(folder) / "l.db"))
            book = await Book().open(f"sqlite+aiosqlite:///{path}")
            records = [book.record(i, each) for i, each in enumerate(drawn)]
            await book.append([records[i] for i in order])
            expected: Counter[str | None] = Counter()
            for record in records:
                expected[record.currency] += record.cost_pico
            sums = await book.sums()
            assert {each.currency: each.cost_pico for each in sums} == dict(expected)
            assert sum(each.prompt_tokens for each in sums) == sum(
                record.prompt_tokens for record in records
            )
            by = frozenset({"tenant", "model", "hour"})
            assert sum(each.cost_pico for each in await book.sums(by=by)) == sum(expected.values())
            key = lambda record: (record.accepted_at, record.request_id)  # noqa: E731  a name for a line
            assert await book.stream() == sorted(records, key=key)
            await book.database.close()

    asyncio.run(check())


async def test_a_sum_beyond_64_bits_is_exact(book: Book) -> None:
    records = [book.record(i, (0, "acme", "tiny", 1, MAX_PICO, "EUR")) for i in range(5)]
    await book.append(records)
    (total,) = await book.sums()
    assert total.cost_pico == 5 * MAX_PICO


async def test_groups_are_by_tenant_model_and_time_in_utc(book: Book) -> None:
    await book.append(
        [
            book.record(0, (0, "acme", "tiny", 2, 1, "EUR")),
            book.record(1, (0, "acme", "tiny", 2, 1, "EUR")),
            book.record(2, (3, "globex", "tiny", 2, 1, "EUR")),
        ]
    )
    by_hour = await book.sums(by=frozenset({"tenant", "hour"}))
    assert [(each.tenant, each.since, each.requests) for each in by_hour] == [
        ("acme", START, 2),
        ("globex", START + timedelta(hours=3), 1),
    ]
    by_day = await book.sums(by=frozenset({"model", "day"}))
    assert [(each.model, each.since, each.cost_pico) for each in by_day] == [
        ("tiny", datetime(2026, 11, 30, tzinfo=UTC), 2),
        ("tiny", datetime(2026, 12, 1, tzinfo=UTC), 1),
    ]


async def test_filters_take_what_they_say(book: Book) -> None:
    await book.append(
        [
            book.record(0, (0, "acme", "acme/support@1", 1, 1, "EUR")),
            book.record(1, (1, "acme", "acme/support@2", 1, 1, "EUR")),
            book.record(2, (2, "globex", "tiny", 1, 1, "EUR")),
        ]
    )

    async def ids(asked: UsageFilter) -> list[str]:
        async with book.database.reader() as session:
            return [record.request_id for record in await find_usage(session, asked, 10)]

    assert await ids(UsageFilter(model="acme/support")) == ["req_0001", "req_0000"]
    assert await ids(UsageFilter(model="acme/support@1")) == ["req_0000"]
    assert await ids(UsageFilter(model="acme/supp_rt")) == []
    assert await ids(UsageFilter(tenant_id=book.owners["globex"][0])) == ["req_0002"]
    hour = timedelta(hours=1)
    since, until = START + hour, START + 2 * hour
    assert await ids(UsageFilter(since=since, until=until)) == ["req_0001"]


async def test_pages_show_each_record_once(book: Book) -> None:
    records = [book.record(i, (i % 2, "acme", "tiny", 1, 1, "EUR")) for i in range(7)]
    await book.append(records)
    seen: list[str] = []
    async with book.database.reader() as session:
        while page := await find_usage(session, UsageFilter(), 2, seen[-1] if seen else None):
            seen += [record.request_id for record in page]
        with pytest.raises(ValueRefused, match="nothing"):
            await find_usage(session, UsageFilter(), 2, "nothing")
    newest = sorted(records, key=lambda r: (r.accepted_at, r.request_id), reverse=True)
    assert seen == [record.request_id for record in newest]


async def test_a_record_keeps_the_price_it_was_written_with(book: Book) -> None:
    record = book.record(0, (0, "acme", "tiny", 4, 77, "USD"))
    await book.append([record])
    assert await book.stream() == [record]
    assert replace(record, cost_pico=78) != record
