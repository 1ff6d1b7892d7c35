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
    UniqueConstraint,
    true,
)
from sqlalchemy.orm import Mapped, mapped_column

from loraplex.tenants.columns import Base, BigId, UtcDateTime, one_of

TENANT_STATUSES = ("active", "suspended", "deleting", "deleted")
PROJECT_STATUSES = ("active", "archived")
KEY_ROLES = ("tenant_admin", "developer", "read_only")
ADMIN_ROLES = ("owner", "operator", "finance", "read_only")
USAGE_SOURCES = ("measured", "journal", "estimated")
ALL_TIERS = "priority,default,flex"
FINISH_REASONS = ("stop", "length", "abort", "error")


class Tenant(Base):
    """A customer of the platform. The row of a deleted one stays: the ledger names it."""

    __tablename__ = "tenant"
    __table_args__ = (
        CheckConstraint(one_of("status", TENANT_STATUSES), name="status"),
        CheckConstraint("weight > 0", name="weight"),
        CheckConstraint("ttft_deadline_ms > 0", name="ttft_deadline_ms"),
        CheckConstraint("adapter_storage_bytes > 0", name="adapter_storage_bytes"),
        CheckConstraint("adapter_max_rank > 0", name="adapter_max_rank"),
        CheckConstraint("adapter_max_modules > 0", name="adapter_max_modules"),
        CheckConstraint("adapter_floor_bytes > 0", name="adapter_floor_bytes"),
        CheckConstraint("adapter_cap_bytes > 0", name="adapter_cap_bytes"),
        CheckConstraint("adapter_pin_bytes > 0", name="adapter_pin_bytes"),
        CheckConstraint("adapter_host_floor_bytes > 0", name="adapter_host_floor_bytes"),
        CheckConstraint("adapter_host_cap_bytes > 0", name="adapter_host_cap_bytes"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(40), unique=True)
    status: Mapped[str] = mapped_column(String(16))
    weight: Mapped[float] = mapped_column(Double)
    """Share of the machine, relative to other tenants."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Grows with each change of its share or its tiers; the planner believes the newest."""
    service_tiers: Mapped[str] = mapped_column(String(40), server_default=ALL_TIERS)
    """Those that its requests may ask for, with commas."""
    time_zone: Mapped[str] = mapped_column(String(64), server_default="UTC")
    """In which its months begin, from the month after it was set."""
    earlier_time_zones: Mapped[str] = mapped_column(Text, server_default="")
    """Zones before that, as `periods.Calendar` has them."""
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
    adapter_host_floor_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """The same of the host's memory, behind the device's; so below."""
    adapter_host_cap_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Project(Base):
    """A part of a tenant that has keys and limits of its own."""

    __tablename__ = "project"
    __table_args__ = (
        CheckConstraint(one_of("status", PROJECT_STATUSES), name="status"),
        UniqueConstraint("tenant_id", "name"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str] = mapped_column(String(40))
    status: Mapped[str] = mapped_column(String(16))
    models: Mapped[str | None] = mapped_column(Text)
    """JSON list of the models that its keys may call; None allows all of the tenant's."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ApiKey(Base):
    """A key of a tenant; the key itself is nowhere, only its keyed hash."""

    __tablename__ = "api_key"
    __table_args__ = (CheckConstraint(one_of("role", KEY_ROLES), name="role"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), index=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"), index=True)
    label: Mapped[str] = mapped_column(String(100))
    key_hash: Mapped[str] = mapped_column(String(64))
    """HMAC-SHA256 of the whole key, in hex."""
    previous_hash: Mapped[str | None] = mapped_column(String(64))
    """Of the key before it was rotated, which opens until `previous_until`."""
    previous_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    rotated_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    role: Mapped[str] = mapped_column(String(16), server_default="developer")
    permissions: Mapped[str | None] = mapped_column(Text)
    """JSON list of what it may do, of what its role may; None allows all of that."""
    models: Mapped[str | None] = mapped_column(Text)
    """JSON list of the models that it may call; None allows all of its project's."""
    addresses: Mapped[str | None] = mapped_column(Text)
    """JSON list of the networks that it may come from, such as `10.0.0.0/8`; None allows all."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class AdminKey(Base):
    """A key of the operator, for the admin API; the key itself is nowhere."""

    __tablename__ = "admin_key"
    __table_args__ = (CheckConstraint(one_of("role", ADMIN_ROLES), name="role"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    label: Mapped[str] = mapped_column(String(100))
    key_hash: Mapped[str] = mapped_column(String(64))
    """HMAC-SHA256 of the whole key, in hex."""
    role: Mapped[str] = mapped_column(String(16), server_default="owner")
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
    """Id of the key that sent it."""
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
        CheckConstraint(one_of("source", USAGE_SOURCES), name="source"),
        Index("ix_usage_tenant_id_accepted_at", "tenant_id", "accepted_at"),
        Index("ix_usage_accepted_at", "accepted_at"),
    )

    id: Mapped[BigId] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(String(80), unique=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"))
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
    source: Mapped[str] = mapped_column(String(16), server_default="measured")
    """Who counted: the gateway that served it; the worker's journal, for a gateway that died; or
    nobody to the end, so that it is estimated."""
    billable: Mapped[bool] = mapped_column(server_default=true())
    """False for what the platform broke off: it is told, and costs nothing."""
    service_tier: Mapped[str | None] = mapped_column(String(16))
    """Under which it ran."""
    output_digest: Mapped[str | None] = mapped_column(String(32))
    """Of the ids of the output's tokens, as the worker's journal has it."""


class UsageRetention(Base):
    """One row, once usage was removed: from when on it is whole."""

    __tablename__ = "usage_retention"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kept_from: Mapped[datetime] = mapped_column(UtcDateTime)


class AuditEvent(Base):
    """Something that somebody did; appended once, never changed."""

    __tablename__ = "audit_event"
    __table_args__ = (Index("ix_audit_event_tenant_id_at", "tenant_id", "at"),)

    id: Mapped[BigId] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    actor: Mapped[str] = mapped_column(String(80))
    """Id of the key or person that did it, or `cli`, or `platform`."""
    actor_kind: Mapped[str | None] = mapped_column(String(16))
    """None in events from before it was told."""
    request_id: Mapped[str | None] = mapped_column(String(80))
    tenant_id: Mapped[str | None] = mapped_column(ForeignKey("tenant.id"))
    """Whose thing it was done to."""
    action: Mapped[str] = mapped_column(String(60))
    """Such as `adapter.alias.flip`."""
    subject: Mapped[str] = mapped_column(String(200))
    """What it was done to, by name."""
    detail: Mapped[str] = mapped_column(Text)
    """JSON object: what it was before and after, as far as the action tells."""
    previous_hash: Mapped[str | None] = mapped_column(String(64))
    """`hash` of the event before it."""
    hash: Mapped[str | None] = mapped_column(String(64))
    """SHA-256 of the event and `previous_hash`, in hex; None before the log was chained."""


class Catalogue(Base):
    """One row that counts the changes of whatever requests are admitted by; triggers do."""

    __tablename__ = "catalogue"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[int] = mapped_column(BigInteger)


class Deployment(Base):
    """One row that ties the database to the secret its keys were hashed with."""

    __tablename__ = "deployment"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    secret_fingerprint: Mapped[str] = mapped_column(String(64))
    first_epoch: Mapped[int] = mapped_column(BigInteger, server_default="0")
    """Of budgets; each restore raises it above all that copies of them may have had."""
