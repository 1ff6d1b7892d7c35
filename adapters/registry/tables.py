"""Tables of adapters: a tenant's names, and the immutable versions behind them."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from loraplex.tenants.columns import Base, BigId, UtcDateTime


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
