"""A tenant's usage: by day, by model, and its requests one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from loraplex.platform.console.access import SignedIn
from loraplex.platform.console.bars import Bar, draw
from loraplex.platform.console.pages import render
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.deps import ServicesOf
from loraplex.tenants import directory
from loraplex.tenants.ledger import UsageRecord, list_usage
from loraplex.tenants.totals import ModelTotal, totals_by_model

router = APIRouter(route_class=ConsoleRoute)

RANGES = MappingProxyType({"7": "7 days", "14": "14 days", "30": "30 days", "90": "90 days"})
DEFAULT_RANGE = "14"
PAGE = 25


@dataclass(slots=True)
class Total:
    """Sums of a day, a model or all."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def add(self, total: ModelTotal) -> None:
        """Count one more part."""
        self.requests += total.requests
        self.failed += total.failed
        self.prompt_tokens += total.prompt_tokens
        self.cached_tokens += total.cached_tokens
        self.completion_tokens += total.completion_tokens

    @property
    def tokens(self) -> int:
        """Prompt and output."""
        return self.prompt_tokens + self.completion_tokens


@router.get("/tenants/{name}/usage")
async def show_usage(
    name: str,
    request: Request,
    _session: SignedIn,
    services: ServicesOf,
    days: Annotated[str, Query()] = DEFAULT_RANGE,
    before: Annotated[datetime | None, Query()] = None,
) -> Response:
    """Sums of the chosen days, and a page of requests accepted before a time."""
    days = days if days in RANGES else DEFAULT_RANGE
    before = before.replace(tzinfo=before.tzinfo or UTC) if before else None
    bounds = _days(services.now(), int(days))
    async with services.resources.database.reader() as session:
        tenant = await directory.get_by_name(session, name)
        totals = await totals_by_model(session, tenant.id, bounds)
        records = await list_usage(session, tenant.id, until=before, limit=PAGE + 1)
    by_day = _sums(totals, [(index, day) for index, (day, _) in enumerate(pairwise(bounds))])
    return render(
        request,
        "usage.html",
        tenant=tenant,
        days=days,
        ranges=RANGES,
        by_day=by_day,
        chart=draw([Bar(day, sums.tokens) for day, sums in by_day]),
        by_model=_by_model(totals),
        whole=_whole(totals),
        records=[(record, ttft_ms(record)) for record in records[:PAGE]],
        older=records[PAGE - 1].accepted_at.isoformat() if len(records) > PAGE else None,
        before=before,
    )


def ttft_ms(record: UsageRecord) -> float | None:
    """From a request's arrival to its first token."""
    if record.first_token_at is None:
        return None
    return (record.first_token_at - record.accepted_at) / timedelta(milliseconds=1)


def _days(now: datetime, count: int) -> list[datetime]:
    """The bounds of the last days in UTC, today included."""
    tomorrow = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    tomorrow += timedelta(days=1)
    return [tomorrow - timedelta(days=ago) for ago in range(count, -1, -1)]


def _sums(
    totals: Sequence[ModelTotal], days: Sequence[tuple[int, datetime]]
) -> list[tuple[datetime, Total]]:
    sums = [(day, Total()) for _, day in days]
    for total in totals:
        sums[total.period][1].add(total)
    return sums


def _by_model(totals: Sequence[ModelTotal]) -> list[tuple[str, Total]]:
    """Models by tokens, the most used first."""
    sums: dict[str, Total] = {}
    for total in totals:
        sums.setdefault(total.model, Total()).add(total)
    return sorted(sums.items(), key=lambda item: (-item[1].tokens, item[0]))


def _whole(totals: Sequence[ModelTotal]) -> Total:
    whole = Total()
    for total in totals:
        whole.add(total)
    return whole
