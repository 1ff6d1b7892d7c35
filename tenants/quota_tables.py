"""Tables of limits, of what budgets are reckoned from, and of requests that may be charged."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from loraplex.tenants.columns import Base, UtcDateTime, one_of

SCOPES = ("tenant", "project", "key", "adapter")
MODES = ("enforce", "shadow")
ON_STORE_LOSS = ("local", "open", "closed")


class LimitPolicy(Base):
    """One limit of one tenant, project, key or adapter."""

    __tablename__ = "limit_policy"
    __table_args__ = (
        CheckConstraint(one_of("scope", SCOPES), name="scope"),
        CheckConstraint(one_of("mode", MODES), name="mode"),
        CheckConstraint(one_of("on_store_loss", ON_STORE_LOSS), name="on_store_loss"),
        CheckConstraint("value >= 0", name="value"),
        CheckConstraint("burst > 0", name="burst"),
        UniqueConstraint("tenant_id", "scope", "scope_id", "dimension"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    scope: Mapped[str] = mapped_column(String(8))
    scope_id: Mapped[str] = mapped_column(String(40))
    """Id of the tenant, project or key; an adapter's name."""
    dimension: Mapped[str] = mapped_column(String(32))
    value: Mapped[int] = mapped_column(BigInteger)
    """In the dimension's own unit."""
    burst: Mapped[int | None] = mapped_column(BigInteger)
    """Of a limit per minute, what may be used at once; None is a minute's worth."""
    mode: Mapped[str] = mapped_column(String(8))
    on_store_loss: Mapped[str | None] = mapped_column(String(8))
    """What holds while the store that gateways share is away; None takes the dimension's own."""
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class BudgetEpoch(Base):
    """Tells reckonings of one budget in one period apart: a copy with another epoch is void."""

    __tablename__ = "budget_epoch"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)
    scope: Mapped[str] = mapped_column(String(8), primary_key=True)
    scope_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    dimension: Mapped[str] = mapped_column(String(32), primary_key=True)
    period_start: Mapped[datetime] = mapped_column(UtcDateTime, primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger)


class BudgetAdjustment(Base):
    """What somebody added to a budget's use, or took off; appended once, never changed."""

    __tablename__ = "budget_adjustment"
    __table_args__ = (
        Index("ix_budget_adjustment_tenant_id_period_start", "tenant_id", "period_start"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    scope: Mapped[str] = mapped_column(String(8))
    scope_id: Mapped[str] = mapped_column(String(40))
    dimension: Mapped[str] = mapped_column(String(32))
    period_start: Mapped[datetime] = mapped_column(UtcDateTime)
    amount: Mapped[int] = mapped_column(BigInteger)
    """In the dimension's own unit; negative gives budget back."""
    reason: Mapped[str] = mapped_column(String(200))
    actor: Mapped[str] = mapped_column(String(80))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class IntentRow(Base):
    """A request that was admitted and is not in the ledger: written before it runs, and removed
    when its usage is appended, or when it is known that nothing ran."""

    __tablename__ = "usage_intent"
    __table_args__ = (
        Index("ix_usage_intent_tenant_id_accepted_at", "tenant_id", "accepted_at"),
        Index("ix_usage_intent_lease_until", "lease_until"),
    )

    request_id: Mapped[str] = mapped_column(String(80), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"))
    key_id: Mapped[str] = mapped_column(ForeignKey("api_key.id"))
    gateway_id: Mapped[str] = mapped_column(String(40))
    """Who serves it; another one settles it when the lease is over."""
    requested_model: Mapped[str] = mapped_column(String(200))
    model: Mapped[str] = mapped_column(String(200))
    adapter_digest: Mapped[str | None] = mapped_column(String(80))
    price_id: Mapped[str | None] = mapped_column(ForeignKey("price.id"))
    service_tier: Mapped[str | None] = mapped_column(String(16))
    prompt_tokens: Mapped[int]
    max_output_tokens: Mapped[int] = mapped_column(BigInteger)
    """Of all choices, as the engine was told."""
    max_cost_pico: Mapped[int] = mapped_column(BigInteger)
    """What it costs at most, in 10⁻¹² of the price's currency."""
    delivered_tokens: Mapped[int] = mapped_column(BigInteger)
    """Output that its gateway had when it last renewed the lease."""
    accepted_at: Mapped[datetime] = mapped_column(UtcDateTime)
    lease_until: Mapped[datetime] = mapped_column(UtcDateTime)
