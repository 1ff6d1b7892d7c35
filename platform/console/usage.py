"""A tenant's usage: by day, by model, and its requests one by one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from loraplex.platform.console.bars import Bar, draw
from loraplex.platform.console.formats import NOTHING
from loraplex.platform.console.pages import render
from loraplex.platform.console.permissions import Inside, Place
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.deps import ServicesOf
from loraplex.tenants.ledger import UsageFilter, UsageRecord, list_usage
from loraplex.tenants.money import decimal_of
from loraplex.tenants.usage_sums import UsageSum, sum_usage

router = APIRouter(route_class=ConsoleRoute)

RANGES = MappingProxyType({"7": "7 days", "14": "14 days", "30": "30 days", "90": "90 days"})
DEFAULT_RANGE = "14"
PAGE = 25


@dataclass(slots=True)
class Total:
    """Sums of a day, a model or all."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_pico: dict[str, int] = field(default_factory=dict)
    """By currency."""

    def add(self, part: UsageSum) -> None:
        """Count one more part."""
        self.requests += part.requests
        self.prompt_tokens += part.prompt_tokens
        self.completion_tokens += part.completion_tokens
        if part.currency is not None:
            paid = self.cost_pico.get(part.currency, 0)
            self.cost_pico[part.currency] = paid + part.cost_pico

    @property
    def tokens(self) -> int:
        """Prompt and output."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def cost(self) -> str:
        """An exact amount for each currency; a dash where nothing had a price."""
        amounts = [f"{decimal_of(pico)} {unit}" for unit, pico in sorted(self.cost_pico.items())]
        return ", ".join(amounts) or NOTHING


@router.get("/tenants/{name}/usage")
async def show_usage(
    place: Annotated[Place, Depends(Inside("usage.read"))],
    request: Request,
    services: ServicesOf,
    days: Annotated[str, Query()] = DEFAULT_RANGE,
    before: Annotated[datetime | None, Query()] = None,
) -> Response:
    """Sums of the chosen days, and a page of requests accepted before a time."""
    days = days if days in RANGES else DEFAULT_RANGE
    before = before.replace(tzinfo=before.tzinfo or UTC) if before else None
    shown = _days(services.now(), int(days))
    async with services.resources.database.reader() as session:
        tenant = place.tenant
        asked = UsageFilter(tenant_id=tenant.id, since=shown[0])
        sums = await sum_usage(session, asked, {"model", "day"})
        records = await list_usage(session, tenant.id, until=before, limit=PAGE + 1)
    by_day = _by_day(sums, shown)
    return render(
        request,
        "usage.html",
        place=place,
        days=days,
        ranges=RANGES,
        by_day=by_day,
        chart=draw([Bar(day, total.tokens) for day, total in by_day]),
        by_model=_by_model(sums),
        whole=_whole(sums),
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
    """The starts of the last days in UTC, today's last."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return [today - timedelta(days=ago) for ago in reversed(range(count))]


def _by_day(sums: Sequence[UsageSum], days: Sequence[datetime]) -> list[tuple[datetime, Total]]:
    """All days, those without a request too."""
    totals = {day: Total() for day in days}
    for part in sums:
        assert part.since is not None
        totals[part.since].add(part)
    return list(totals.items())


def _by_model(sums: Sequence[UsageSum]) -> list[tuple[str, Total]]:
    """Models by tokens, the most used first."""
    totals: dict[str, Total] = {}
    for part in sums:
        assert part.model is not None
        totals.setdefault(part.model, Total()).add(part)
    return sorted(totals.items(), key=lambda item: (-item[1].tokens, item[0]))


def _whole(sums: Sequence[UsageSum]) -> Total:
    whole = Total()
    for part in sums:
        whole.add(part)
    return whole
