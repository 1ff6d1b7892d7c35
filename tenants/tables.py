"""Tables of tenants, their keys and the ledger of what they used."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
)
from sqlalchemy.orm import Mapped, mapped_column

from loraplex.tenants.columns import Base, BigId, UtcDateTime, one_of

TENANT_STATUSES = ("active", "suspended")
FINISH_REASONS = ("stop", "length", "abort", "error")


class Tenant(Base):
    """A customer of the platform. Tenants are suspended, never deleted: the ledger names them."""

    __tablename__ = "tenant"
    __table_args__ = (
        CheckConstraint(one_of("status", TENANT_STATUSES), name="status"),
        CheckConstraint("weight > 0", name="weight"),
        CheckConstraint("requests_per_minute > 0", name="requests_per_minute"),
        CheckConstraint("tokens_per_minute > 0", name="tokens_per_minute"),
        CheckConstraint("concurrency > 0", name="concurrency"),
        CheckConstraint("ttft_deadline_ms > 0", name="ttft_deadline_ms"),
        CheckConstraint("adapter_storage_bytes > 0", name="adapter_storage_bytes"),
        CheckConstraint("adapter_max_rank > 0", name="adapter_max_rank"),
        CheckConstraint("adapter_max_modules > 0", name="adapter_max_modules"),
        CheckConstraint("adapter_floor_bytes > 0", name="adapter_floor_bytes"),
        CheckConstraint("adapter_cap_bytes > 0", name="adapter_cap_bytes"),
        CheckConstraint("adapter_pin_bytes > 0", name="adapter_pin_bytes"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(40), unique=True)
    status: Mapped[str] = mapped_column(String(16))
    weight: Mapped[float] = mapped_column(Double)
    """Share of the machine, relative to other tenants."""
    requests_per_minute: Mapped[int | None]
    tokens_per_minute: Mapped[int | None]
    concurrency: Mapped[int | None]
    ttft_deadline_ms: Mapped[int | None]
    adapter_storage_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Most that its adapters may take in the store."""
    adapter_max_rank: Mapped[int | None]
    adapter_max_modules: Mapped[int | None]
    """Most modules that one of its adapters may change."""
    adapter_floor_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Of the device's memory, what others cannot push its adapters out of; so below."""
    adapter_cap_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Most that its adapters may take."""
    adapter_pin_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Most that it may pin."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ApiKey(Base):
    """A key of a tenant; the key itself is nowhere, only its keyed hash."""

    __tablename__ = "api_key"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), index=True)
    label: Mapped[str] = mapped_column(String(100))
    key_hash: Mapped[str] = mapped_column(String(64))
    """HMAC-SHA256 of the whole key, in hex."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class AdminKey(Base):
    """A key of the operator, for the admin API; the key itself is nowhere."""

    __tablename__ = "admin_key"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    label: Mapped[str] = mapped_column(String(100))
    key_hash: Mapped[str] = mapped_column(String(64))
    """HMAC-SHA256 of the whole key, in hex."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class PriceRow(Base):
    """What tokens cost from a time on; added, never changed."""

    __tablename__ = "price"
    __table_args__ = (
        CheckConstraint(
            "prompt_micros >= 0 AND cached_micros >= 0 AND completion_micros >= 0", name="micros"
        ),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    currency: Mapped[str] = mapped_column(String(3))
    prompt_micros: Mapped[int] = mapped_column(BigInteger)
    """Millionths of the currency per million tokens; so below."""
    cached_micros: Mapped[int] = mapped_column(BigInteger)
    completion_micros: Mapped[int] = mapped_column(BigInteger)
    valid_from: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class IdempotencyRow(Base):
    """A POST that its sender may repeat: claimed before its effect, answered with it."""

    __tablename__ = "idempotency"

    owner: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Id of the admin key that sent it."""
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    """SHA-256 of method, path and body, in hex."""
    nonce: Mapped[str] = mapped_column(String(64))
    """Random; tells one attempt from the next, and secrets of the answer are derived from it."""
    claimed_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    status: Mapped[int | None]
    """None until it is answered."""
    answer: Mapped[bytes | None] = mapped_column(LargeBinary)
    """JSON, without the secrets of the answer."""


class UsageRow(Base):
    """What one request used; appended once, never changed."""

    __tablename__ = "usage"
    __table_args__ = (
        CheckConstraint(one_of("finish_reason", FINISH_REASONS), name="finish_reason"),
        CheckConstraint(
            "cached_tokens >= 0 AND cached_tokens <= prompt_tokens AND completion_tokens >= 0",
            name="tokens",
        ),
        CheckConstraint("cost_pico >= 0", name="cost_pico"),
        Index("ix_usage_tenant_id_accepted_at", "tenant_id", "accepted_at"),
        Index("ix_usage_accepted_at", "accepted_at"),
    )

    id: Mapped[BigId] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(String(80), unique=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    key_id: Mapped[str] = mapped_column(ForeignKey("api_key.id"))
    requested_model: Mapped[str] = mapped_column(String(200))
    """As the request named it."""
    model: Mapped[str] = mapped_column(String(200))
    """As it was resolved at admission, with its version."""
    adapter_digest: Mapped[str | None] = mapped_column(String(80))
    prompt_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    finish_reason: Mapped[str] = mapped_column(String(16))
    accepted_at: Mapped[datetime] = mapped_column(UtcDateTime)
    first_token_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime] = mapped_column(UtcDateTime)
    queue_ms: Mapped[float] = mapped_column(Double)
    price_id: Mapped[str | None] = mapped_column(ForeignKey("price.id"))
    """The price as of admission; None where none was set."""
    currency: Mapped[str | None] = mapped_column(String(3))
    cost_pico: Mapped[int] = mapped_column(BigInteger)
    """10⁻¹² of the currency."""


class AuditEvent(Base):
    """Something that somebody did; appended once, never changed."""

    __tablename__ = "audit_event"
    __table_args__ = (Index("ix_audit_event_tenant_id_at", "tenant_id", "at"),)

    id: Mapped[BigId] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    actor: Mapped[str] = mapped_column(String(80))
    """Id of the key that did it, or `cli`, or `platform`."""
    tenant_id: Mapped[str | None] = mapped_column(ForeignKey("tenant.id"))
    """Whose thing it was done to."""
    action: Mapped[str] = mapped_column(String(60))
    """Such as `adapter.alias.flip`."""
    subject: Mapped[str] = mapped_column(String(200))
    """What it was done to, by name."""
    detail: Mapped[str] = mapped_column(Text)
    """JSON object: what it was before and after, as far as the action tells."""


class Deployment(Base):
    """One row that ties the database to the secret its keys were hashed with."""

    __tablename__ = "deployment"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    secret_fingerprint: Mapped[str] = mapped_column(String(64))
