"""Tables of adapters: a tenant's names, the immutable versions behind them, and what moves."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from loraplex.tenants.columns import Base, BigId, UtcDateTime, one_of

VERSION_STATUSES = ("ready", "retired", "deleted")
DELETION_MODES = ("drain", "force")
CLAIM_KINDS = ("keep", "remove")
UPLOAD_STATUSES = ("uploading", "validating", "ready", "rejected", "cancelled")


class Adapter(Base):
    """A name of one tenant; what it serves is its newest version."""

    __tablename__ = "adapter"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[BigId] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str] = mapped_column(String(40))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class AdapterVersion(Base):
    """One immutable checkpoint under a name."""

    __tablename__ = "adapter_version"
    __table_args__ = (
        UniqueConstraint("adapter_id", "number"),
        UniqueConstraint("adapter_id", "digest"),
        CheckConstraint("number >= 1", name="number"),
        CheckConstraint(one_of("status", VERSION_STATUSES), name="status"),
        CheckConstraint(one_of("deletion", DELETION_MODES), name="deletion"),
        Index("ix_adapter_version_digest", "digest"),
        Index(
            "ix_adapter_version_deletion",
            "deletion",
            sqlite_where=text("deletion IS NOT NULL"),
            postgresql_where=text("deletion IS NOT NULL"),
        ),
    )

    id: Mapped[BigId] = mapped_column(primary_key=True)
    adapter_id: Mapped[BigId] = mapped_column(ForeignKey("adapter.id"))
    number: Mapped[int]
    """1, 2, … within the adapter."""
    digest: Mapped[str] = mapped_column(String(80))
    rank: Mapped[int]
    """Largest rank of its modules."""
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    base_model: Mapped[str] = mapped_column(String(200))
    """Name of the base model that the checkpoint was validated against."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    status: Mapped[str] = mapped_column(String(16), server_default="ready")
    """`ready` can be called; `retired` finishes what runs; of a `deleted` one only the row is left,
    which invoices name."""
    retired_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    deletion: Mapped[str | None] = mapped_column(String(8))
    """While its deletion is under way: how the requests on it end, by themselves or by us."""
    num_deletions: Mapped[int] = mapped_column(server_default="0")
    """How often a deletion of it began; what is said of one says nothing of the next."""
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    is_pinned: Mapped[bool] = mapped_column(server_default=false())
    """Kept in memory while its tenant's pins allow it."""
    self_test: Mapped[str | None] = mapped_column(Text)
    """JSON: what the self-test at registration compared and found; None if none ran."""
    profile: Mapped[str | None] = mapped_column(Text)
    """JSON: how requests on it are made, such as its chat template; None for the base's ways."""
    warnings: Mapped[str | None] = mapped_column(Text)
    """JSON: what is legal in it and yet hardly meant; None if nothing is."""


class AdapterAlias(Base):
    """A name that moves between versions of one adapter, as `tenant/adapter:alias`."""

    __tablename__ = "adapter_alias"
    __table_args__ = (
        UniqueConstraint("adapter_id", "name"),
        CheckConstraint("canary_percent >= 1 AND canary_percent <= 100", name="canary_percent"),
        CheckConstraint("(canary_percent IS NULL) = (canary_version_id IS NULL)", name="canary"),
    )

    id: Mapped[BigId] = mapped_column(primary_key=True)
    adapter_id: Mapped[BigId] = mapped_column(ForeignKey("adapter.id"))
    name: Mapped[str] = mapped_column(String(40))
    version_id: Mapped[BigId] = mapped_column(ForeignKey("adapter_version.id"))
    previous_version_id: Mapped[BigId | None] = mapped_column(ForeignKey("adapter_version.id"))
    """What it meant before; a rollback goes there."""
    canary_version_id: Mapped[BigId | None] = mapped_column(ForeignKey("adapter_version.id"))
    canary_percent: Mapped[int | None]
    """Of requests, those that run on the canary's version."""
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class AdapterUpload(Base):
    """A checkpoint on its way to become a version, or the reasons why it became none."""

    __tablename__ = "adapter_upload"
    __table_args__ = (CheckConstraint(one_of("status", UPLOAD_STATUSES), name="status"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), index=True)
    name: Mapped[str] = mapped_column(String(40))
    """Of the adapter."""
    status: Mapped[str] = mapped_column(String(16))
    source: Mapped[str | None] = mapped_column(String(400))
    """`source:path` of an import; None if the bytes were sent."""
    files: Mapped[str] = mapped_column(Text)
    """JSON: file name to its length in bytes, or `{"bytes", "sha256"}`, as announced."""
    problems: Mapped[str | None] = mapped_column(Text)
    """JSON: why it is rejected."""
    version_id: Mapped[BigId | None] = mapped_column(ForeignKey("adapter_version.id"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Gateway(Base):
    """A gateway that runs, and the deletions that it does not stand in the way of."""

    __tablename__ = "gateway"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """Long ago for one that was killed."""
    cleared: Mapped[str] = mapped_column(Text)
    """JSON: deletions whose version has no request of it and gets none."""


class BytesClaim(Base):
    """Bytes that somebody puts into the store now, or takes out of it."""

    __tablename__ = "adapter_bytes_claim"
    # No claim is taken for one that was given up before.
    __table_args__ = (
        CheckConstraint(one_of("kind", CLAIM_KINDS), name="kind"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[BigId] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(String(80), index=True)
    kind: Mapped[str] = mapped_column(String(8))
    began_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """Long ago if who made it was killed."""
