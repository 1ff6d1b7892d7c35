"""`/admin/v1/usage` and `/admin/v1/prices`: what was used, and what it costs."""

from typing import Annotated

import fastapi
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.platform.api.admin.schemas import PriceBody
from loraplex.platform.api.bodies import parse_exactly, request_body_of
from loraplex.platform.api.moments import Moment
from loraplex.platform.api.owner import act_of, tenant_of
from loraplex.platform.api.paging import Listing, Page, Query, listing, one_page
from loraplex.platform.api.repeatable import Post
from loraplex.platform.api.views import PriceView, UsageSummary, UsageSumView, UsageView
from loraplex.platform.deps import Admin, ServicesOf, body_of
from loraplex.platform.errors import InvalidRequest
from loraplex.platform.permissions import operator_may
from loraplex.tenants.ids import Entropy
from loraplex.tenants.ledger import UsageFilter, find_usage
from loraplex.tenants.prices import TokenPrices, list_prices, set_price
from loraplex.tenants.usage_sums import GroupBy, sum_usage

router = APIRouter(prefix="/admin/v1")

MAX_GROUPS = 10_000


class UsageQuery(Page):
    """Which requests are listed."""

    tenant: str | None = None
    since: Moment | None = None
    until: Moment | None = None
    model: str | None = None


class SummaryQuery(Query):
    """Which requests are summed, and by what."""

    tenant: str | None = None
    since: Moment | None = None
    until: Moment | None = None
    model: str | None = None
    group_by: Annotated[tuple[GroupBy, ...], Field(max_length=6)] = ()


@router.get("/usage", tags=["usage"], dependencies=[operator_may("usage.read")])
async def list_usage(
    _admin: Admin, services: ServicesOf, asked: Annotated[UsageQuery, fastapi.Query()]
) -> Listing[UsageView]:
    """List requests accepted from `since` on and before `until`, newest first."""
    async with services.resources.database.reader() as session:
        wanted = await _filter(session, asked)
        records = await find_usage(session, wanted, asked.limit + 1, asked.after)
    return one_page([UsageView.of(record) for record in records], asked.limit)


@router.get("/usage/summary", tags=["usage"], dependencies=[operator_may("usage.read")])
async def summarize_usage(
    _admin: Admin, services: ServicesOf, asked: Annotated[SummaryQuery, fastapi.Query()]
) -> UsageSummary:
    """Sum usage by currency and `group_by`: any of `tenant`, `project`, `key`, `model`, and
    `hour` or `day`."""
    if {"hour", "day"} <= set(asked.group_by):
        raise InvalidRequest("group_by: hour and day exclude each other.", "group_by")
    async with services.resources.database.reader() as session:
        wanted = await _filter(session, asked)
        sums = await sum_usage(session, wanted, frozenset(asked.group_by), MAX_GROUPS + 1)
    if len(sums) > MAX_GROUPS:
        raise InvalidRequest(
            f"The summary has more than {MAX_GROUPS} groups; ask for less time at once.", "since"
        )
    return UsageSummary(data=[UsageSumView.of(total) for total in sums])


@router.post(
    "/prices",
    status_code=201,
    response_model=PriceView,
    openapi_extra=request_body_of(PriceBody),
    tags=["prices"],
    dependencies=[operator_may("prices.write")],
)
async def create_price(request: Request, admin: Admin, services: ServicesOf) -> Response:
    """Set the prices of tokens from a time on; requests admitted before keep theirs."""
    asked = parse_exactly(await body_of(request), PriceBody)
    tokens = TokenPrices(
        prompt_micros=asked.prompt_micros,
        cached_micros=asked.cached_micros,
        completion_micros=asked.completion_micros,
    )
    act = act_of(request, admin, services)

    async def work(session: AsyncSession, entropy: Entropy) -> PriceView:
        start = asked.valid_from or act.at
        return PriceView.of(await set_price(session, asked.currency, tokens, start, act, entropy))

    return await Post(request, admin, services).serve(work)


@router.get("/prices", tags=["prices"], dependencies=[operator_may("prices.read")])
async def list_all_prices(
    _admin: Admin, services: ServicesOf, page: Annotated[Page, fastapi.Query()]
) -> Listing[PriceView]:
    """List all prices there were, are and will be; those that hold last come first."""
    async with services.resources.database.reader() as session:
        prices = await list_prices(session)
    return listing([PriceView.of(price) for price in prices], page)


async def _filter(session: AsyncSession, asked: UsageQuery | SummaryQuery) -> UsageFilter:
    owner = None if asked.tenant is None else await tenant_of(session, asked.tenant)
    return UsageFilter(
        tenant_id=None if owner is None else owner.id,
        since=asked.since,
        until=asked.until,
        model=asked.model,
    )
