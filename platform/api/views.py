"""What the REST routes show of tenants, keys, adapters, usage and prices."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel

from loraplex.adapters.registry.registry import PublishedVersion
from loraplex.engine.protocol import Explained, Submit
from loraplex.platform.api.paging import View
from loraplex.platform.open_request import EndedRequest, OpenRequest
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.ledger import UsageRecord
from loraplex.tenants.money import decimal_of
from loraplex.tenants.prices import Price
from loraplex.tenants.usage_sums import UsageSum


class SelfTestView(BaseModel):
    """How a version's first answers compared with a reference, before it was published."""

    method: str
    """`peft`, or `reference` for the worker's own plain computation."""
    passed: bool
    max_abs_logprob_diff: float
    """Of drawn tokens, served and reference; natural logarithms."""
    num_tokens: int
    num_compared: int
    changes_output: bool
    """False if the adapter left the base model's answers as they are."""
    detail: str

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Self:
        """Show what was kept."""
        return cls(**{name: report[name] for name in cls.model_fields})


class AdapterVersionView(View):
    """One version of an adapter; `id` is what a request may name as `model`."""

    object: Literal["adapter.version"] = "adapter.version"
    model: str
    """`tenant/adapter`: the newest version."""
    version: int
    digest: str
    rank: int
    num_bytes: int
    base_model: str
    created_at: datetime
    status: str
    """`ready` can be called; `retired` and `deleted` cannot."""
    is_pinned: bool
    deletion: str | None
    """`drain` or `force` while it is being deleted."""
    retired_at: datetime | None
    deleted_at: datetime | None
    self_test: SelfTestView | None
    """Null if none was made."""
    warnings: list[str]
    """What is legal in it and yet hardly meant."""

    @classmethod
    def of(cls, version: PublishedVersion) -> Self:
        """Show it."""
        return cls(
            id=f"{version.model}@{version.version}",
            model=version.model,
            version=version.version,
            digest=version.digest,
            rank=version.rank,
            num_bytes=version.num_bytes,
            base_model=version.base_model,
            created_at=version.created_at,
            status=version.standing.status,
            is_pinned=version.standing.is_pinned,
            deletion=version.standing.deletion,
            retired_at=version.standing.retired_at,
            deleted_at=version.standing.deleted_at,
            self_test=None if version.self_test is None else SelfTestView.of(version.self_test),
            warnings=list(version.warnings),
        )


class LimitsView(BaseModel):
    """Limits of a tenant's own; null takes the platform's default."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency: int | None
    ttft_deadline_ms: int | None
    """Of requests that name none; null refuses none for it."""
    adapter_storage_bytes: int | None
    """Null sets no limit to this and those below, but for pins, where it is nothing."""
    adapter_max_rank: int | None
    adapter_max_modules: int | None
    adapter_floor_bytes: int | None
    adapter_cap_bytes: int | None
    adapter_pin_bytes: int | None
    adapter_host_floor_bytes: int | None
    adapter_host_cap_bytes: int | None


class TenantView(View):
    """A tenant."""

    object: Literal["tenant"] = "tenant"
    name: str
    status: str
    weight: float
    limits: LimitsView
    service_tiers: list[str]
    """Those that its requests may ask for."""
    time_zone: str
    """In which its months begin."""
    created_at: datetime

    @classmethod
    def of(cls, tenant: TenantRecord) -> Self:
        """Show it."""
        limits = asdict(tenant.limits) | asdict(tenant.adapters)
        return cls(
            id=tenant.id,
            name=tenant.name,
            status=tenant.status,
            weight=tenant.weight,
            limits=LimitsView(**limits),
            service_tiers=list(tenant.service_tiers),
            time_zone=tenant.time_zone,
            created_at=tenant.created_at,
        )


class WhyView(View):
    """Why a request waits, or waited; times in ms, `waited_ms` by reason."""

    object: Literal["request.why"] = "request.why"
    state: Literal["waiting", "running", "ended"]
    tenant: str
    model: str
    service_tier: str
    program: str
    waits_for: str | None = None
    waited_ms: Mapping[str, float]
    finish_reason: str | None = None
    queue_ms: float | None = None

    @classmethod
    def of_open(cls, request: OpenRequest, explained: Explained | None) -> Self:
        """Show one that is open; without an explanation it is on its way to the worker, or back."""
        return cls(
            **_subject(request.submit, request.target.name),
            state="waiting" if explained is None else explained.state,
            waits_for=None if explained is None else explained.waits_for,
            waited_ms={} if explained is None else explained.waited_ms,
        )

    @classmethod
    def of_ended(cls, request: EndedRequest) -> Self:
        """Show one that has ended."""
        return cls(
            **_subject(request.submit, request.model),
            state="ended",
            waited_ms=request.waited_ms,
            finish_reason=request.reason,
            queue_ms=request.queue_ms,
        )


def _subject(submit: Submit, model: str) -> dict[str, Any]:
    return {
        "id": submit.request_id,
        "tenant": submit.tenant,
        "model": model,
        "service_tier": submit.service_tier,
        "program": submit.program,
    }


class UsageView(View):
    """What one request used; `id` is the request's."""

    object: Literal["usage"] = "usage"
    tenant_id: str
    key_id: str
    requested_model: str
    model: str
    adapter_digest: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str
    accepted_at: datetime
    first_token_at: datetime | None
    finished_at: datetime
    queue_ms: float
    price_id: str | None
    currency: str | None
    cost_pico: str
    """10⁻¹² of the currency, as text, so that no reader rounds it."""
    cost: str
    """The same in units of the currency."""
    project_id: str
    service_tier: str | None
    source: str
    """Who counted: `measured`, `journal` or `estimated`."""
    billable: bool
    """False for what the platform broke off."""

    @classmethod
    def of(cls, record: UsageRecord) -> Self:
        """Show it."""
        return cls(
            id=record.request_id,
            tenant_id=record.tenant_id,
            key_id=record.key_id,
            requested_model=record.requested_model,
            model=record.model,
            adapter_digest=record.adapter_digest,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            completion_tokens=record.completion_tokens,
            finish_reason=record.finish_reason,
            accepted_at=record.accepted_at,
            first_token_at=record.first_token_at,
            finished_at=record.finished_at,
            queue_ms=record.queue_ms,
            price_id=record.price_id,
            currency=record.currency,
            cost_pico=str(record.cost_pico),
            cost=decimal_of(record.cost_pico),
            project_id=record.project_id,
            service_tier=record.service_tier,
            source=record.source,
            billable=record.billable,
        )


class UsageSumView(BaseModel):
    """Usage of one group; null where it was not grouped by that."""

    tenant: str | None
    project_id: str | None
    key_id: str | None
    model: str | None
    since: datetime | None
    """Start of the hour or day, in UTC."""
    currency: str | None
    """Null sums requests that were admitted without a price."""
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_pico: str
    cost: str

    @classmethod
    def of(cls, total: UsageSum) -> Self:
        """Show it."""
        return cls(
            tenant=total.tenant,
            project_id=total.project_id,
            key_id=total.key_id,
            model=total.model,
            since=total.since,
            currency=total.currency,
            requests=total.requests,
            prompt_tokens=total.prompt_tokens,
            cached_tokens=total.cached_tokens,
            completion_tokens=total.completion_tokens,
            cost_pico=str(total.cost_pico),
            cost=decimal_of(total.cost_pico),
        )


class UsageSummary(BaseModel):
    """Sums over the ledger; one entry per group and currency."""

    object: Literal["usage.summary"] = "usage.summary"
    data: list[UsageSumView]


class PriceView(View):
    """An entry of the price book."""

    object: Literal["price"] = "price"
    currency: str
    prompt_micros: int
    """Millionths of the currency per million tokens; so below."""
    cached_micros: int
    completion_micros: int
    valid_from: datetime
    created_at: datetime

    @classmethod
    def of(cls, price: Price) -> Self:
        """Show it."""
        return cls(
            id=price.id,
            currency=price.currency,
            prompt_micros=price.tokens.prompt_micros,
            cached_micros=price.tokens.cached_micros,
            completion_micros=price.tokens.completion_micros,
            valid_from=price.valid_from,
            created_at=price.created_at,
        )


class DetailView(BaseModel):
    """One reason to refuse an adapter."""

    field: str
    value: str
    reason: str


class ProblemView(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    param: str | None
    problems: list[str] | None = None
    details: list[DetailView] | None = None
