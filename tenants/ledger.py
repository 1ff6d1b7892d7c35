"""The ledger: what each request used, appended once and never changed."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.errors import UsageConflict
from loraplex.tenants.tables import UsageRow

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What one request used, whatever way it ended."""

    request_id: str
    tenant_id: str
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

    def __post_init__(self) -> None:
        if not 0 <= self.cached_tokens <= self.prompt_tokens or self.completion_tokens < 0:
            raise ValueError(f"impossible token counts: {self}")


_FIELDS = tuple(UsageRecord.__dataclass_fields__)


async def append(session: AsyncSession, record: UsageRecord) -> bool:
    """Write the record; False if it is there already.

    Raises:
        UsageConflict: the request id is there with other figures.
    """
    insert = insert_unless_there(session, UsageRow, "request_id", **asdict(record))
    appended = await session.scalar(insert.returning(UsageRow.id))
    if appended is not None:
        return True
    stored = await session.scalar(select(UsageRow).where(UsageRow.request_id == record.request_id))
    if stored is None or _record(stored) != record:
        raise UsageConflict(
            f"Request {record.request_id} is in the ledger with other figures; a request is "
            "appended once and never changed."
        )
    return False


async def list_usage(
    session: AsyncSession,
    tenant_id: str,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 100,
) -> list[UsageRecord]:
    """Return the tenant's records accepted in [since, until): the newest `limit`, newest first."""
    query = select(UsageRow).where(UsageRow.tenant_id == tenant_id)
    if since is not None:
        query = query.where(UsageRow.accepted_at >= since)
    if until is not None:
        query = query.where(UsageRow.accepted_at < until)
    newest = query.order_by(UsageRow.accepted_at.desc(), UsageRow.id.desc()).limit(limit)
    return [_record(row) for row in await session.scalars(newest)]


def _record(row: UsageRow) -> UsageRecord:
    return UsageRecord(**{name: getattr(row, name) for name in _FIELDS})
