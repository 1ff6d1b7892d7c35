"""The ledger: what each request used, appended once and never changed."""

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import ColumnElement, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.dialects import insert_all_unless_there
from loraplex.tenants.errors import UsageConflict, ValueRefused
from loraplex.tenants.tables import UsageRow

FinishReason = Literal["stop", "length", "abort", "error"]
UsageSource = Literal["measured", "journal", "estimated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What one request used, whatever way it ended."""

    request_id: str
    tenant_id: str
    project_id: str
    key_id: str
    requested_model: str
    """As the request named it."""
    model: str
    """As it was resolved at admission, with its version."""
    adapter_digest: str | None
    """None for the base model."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens served from the prefix cache; ≤ `prompt_tokens`."""
    completion_tokens: int
    finish_reason: FinishReason
    accepted_at: datetime
    """The period and the price of a request are those of this time."""
    first_token_at: datetime | None
    """None where the request ended without output."""
    finished_at: datetime
    queue_ms: float
    """From arrival at the worker to its first step."""
    price_id: str | None = None
    """The entry of the price book as of admission; None where there was none."""
    currency: str | None = None
    cost_pico: int = 0
    """10⁻¹² of the currency."""
    source: UsageSource = "measured"
    """Who counted; see the table."""
    billable: bool = True
    """False for what the platform broke off."""
    service_tier: str | None = None
    output_digest: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.cached_tokens <= self.prompt_tokens or self.completion_tokens < 0:
            raise ValueError(f"impossible token counts: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """Which records; None takes all."""

    tenant_id: str | None = None
    since: datetime | None = None
    """Accepted then or later."""
    until: datetime | None = None
    """Accepted before."""
    model: str | None = None
    """As resolved; without `@version` all versions of the adapter."""

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return it in SQL."""
        found: list[ColumnElement[bool]] = []
        if self.tenant_id is not None:
            found.append(UsageRow.tenant_id == self.tenant_id)
        if self.since is not None:
            found.append(UsageRow.accepted_at >= self.since)
        if self.until is not None:
            found.append(UsageRow.accepted_at < self.until)
        if self.model is not None:
            versions = UsageRow.model.startswith(f"{self.model}@", autoescape=True)
            found.append(or_(UsageRow.model == self.model, versions))
        return found


_FIELDS = tuple(UsageRecord.__dataclass_fields__)


async def append(session: AsyncSession, record: UsageRecord) -> bool:
    """Write the record; False if it is there already.

    Raises:
        UsageConflict: the request id is there with other figures.
    """
    (appended,) = await append_all(session, [record])
    if isinstance(appended, UsageConflict):
        raise appended
    return appended


async def append_all(
    session: AsyncSession, records: Sequence[UsageRecord]
) -> list[bool | UsageConflict]:
    """Write records; for each tell whether it was written, or was there already, and with the same
    figures. What the database says against any of them it says against all."""
    rows = [{name: getattr(each, name) for name in _FIELDS} for each in records]
    written = await insert_all_unless_there(session, UsageRow, "request_id", rows)
    rest = [each.request_id for each in records if each.request_id not in written]
    stored = await records_of(session, rest) if rest else {}
    fates: list[bool | UsageConflict] = []
    for record in records:
        if record.request_id in written:
            written.remove(record.request_id)  # another of its id is one too many
            stored[record.request_id] = record
            fates.append(True)
        elif stored.get(record.request_id) == record:
            fates.append(False)
        else:
            fates.append(
                UsageConflict(
                    f"Request {record.request_id} is in the ledger with other figures; a request "
                    "is appended once and never changed."
                )
            )
    return fates


async def records_of(session: AsyncSession, request_ids: Collection[str]) -> dict[str, UsageRecord]:
    """Return the records of those requests that are in the ledger, by their ids."""
    rows = await session.scalars(select(UsageRow).where(UsageRow.request_id.in_(request_ids)))
    return {row.request_id: _record(row) for row in rows}


async def list_usage(
    session: AsyncSession,
    tenant_id: str,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 100,
) -> list[UsageRecord]:
    """Return the tenant's records accepted in [since, until): the newest `limit`, newest first."""
    return await find_usage(
        session, UsageFilter(tenant_id=tenant_id, since=since, until=until), limit
    )


async def find_usage(
    session: AsyncSession, asked: UsageFilter, limit: int, after: str | None = None
) -> list[UsageRecord]:
    """Return the newest `limit` records, newest first; `after` is the request they come after.

    Raises:
        ValueRefused: no request has the id `after`.
    """
    query = select(UsageRow).where(*asked.conditions())
    place = tuple_(UsageRow.accepted_at, UsageRow.request_id)
    if after is not None:
        last = await session.scalar(select(UsageRow).where(UsageRow.request_id == after))
        if last is None:
            raise ValueRefused(f"No request {after[:80]!r} is in the ledger.", "after")
        query = query.where(place < (last.accepted_at, last.request_id))
    newest = query.order_by(UsageRow.accepted_at.desc(), UsageRow.request_id.desc()).limit(limit)
    return [_record(row) for row in await session.scalars(newest)]


async def stream_usage(session: AsyncSession, asked: UsageFilter) -> AsyncIterator[UsageRecord]:
    """Yield all records by time of acceptance and then id; needs a session of `snapshot`."""
    query = (
        select(UsageRow)
        .where(*asked.conditions())
        .order_by(UsageRow.accepted_at, UsageRow.request_id)
        .execution_options(yield_per=1000)
    )
    async for row in await session.stream_scalars(query):
        yield _record(row)
        session.expunge(row)


def _record(row: UsageRow) -> UsageRecord:
    return UsageRecord(**{name: getattr(row, name) for name in _FIELDS})
