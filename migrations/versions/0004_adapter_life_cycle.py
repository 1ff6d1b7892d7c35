"""The life cycle of adapters: states, aliases, uploads, limits; and the audit log.

Revision: 0004, after 0003
"""

import sqlalchemy as sa
from alembic import op

from loraplex.tenants.columns import UtcDateTime

revision = "0004"
down_revision = "0003"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LIMITS = (
    ("adapter_storage_bytes", sa.BigInteger()),
    ("adapter_max_rank", sa.Integer()),
    ("adapter_max_modules", sa.Integer()),
    ("adapter_floor_bytes", sa.BigInteger()),
    ("adapter_cap_bytes", sa.BigInteger()),
    ("adapter_pin_bytes", sa.BigInteger()),
)


def upgrade() -> None:
    """Apply the revision."""
    with op.batch_alter_table("tenant") as tenant:
        for name, kind in _LIMITS:
            tenant.add_column(sa.Column(name, kind, nullable=True))
            tenant.create_check_constraint(op.f(f"ck_tenant_{name}"), f"{name} > 0")
    _extend_versions()
    _create_aliases()
    _create_uploads()
    _create_gateways()
    _create_bytes_claims()
    _create_audit()


def _extend_versions() -> None:
    with op.batch_alter_table("adapter_version") as version:
        version.add_column(
            sa.Column("status", sa.String(16), nullable=False, server_default="ready")
        )
        version.add_column(sa.Column("retired_at", UtcDateTime(), nullable=True))
        version.add_column(sa.Column("deletion", sa.String(8), nullable=True))
        version.add_column(
            sa.Column("num_deletions", sa.Integer(), nullable=False, server_default="0")
        )
        version.add_column(sa.Column("deleted_at", UtcDateTime(), nullable=True))
        version.add_column(
            sa.Column("is_pinned", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        version.add_column(sa.Column("self_test", sa.Text(), nullable=True))
        version.add_column(sa.Column("profile", sa.Text(), nullable=True))
        version.add_column(sa.Column("warnings", sa.Text(), nullable=True))
        version.create_check_constraint(
            op.f("ck_adapter_version_status"), "status IN ('ready', 'retired', 'deleted')"
        )
        version.create_check_constraint(
            op.f("ck_adapter_version_deletion"), "deletion IN ('drain', 'force')"
        )
    op.create_index("ix_adapter_version_digest", "adapter_version", ["digest"])
    op.create_index(
        "ix_adapter_version_deletion",
        "adapter_version",
        ["deletion"],
        sqlite_where=sa.text("deletion IS NOT NULL"),
        postgresql_where=sa.text("deletion IS NOT NULL"),
    )


def _version_id(name: str, *, nullable: bool) -> sa.Column[int]:
    return sa.Column(name, _ID, sa.ForeignKey("adapter_version.id"), nullable=nullable)


def _create_aliases() -> None:
    op.create_table(
        "adapter_alias",
        sa.Column("id", _ID, nullable=False),
        sa.Column("adapter_id", _ID, sa.ForeignKey("adapter.id"), nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        _version_id("version_id", nullable=False),
        _version_id("previous_version_id", nullable=True),
        _version_id("canary_version_id", nullable=True),
        sa.Column("canary_percent", sa.Integer(), nullable=True),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "canary_percent >= 1 AND canary_percent <= 100",
            name=op.f("ck_adapter_alias_canary_percent"),
        ),
        sa.CheckConstraint(
            "(canary_percent IS NULL) = (canary_version_id IS NULL)",
            name=op.f("ck_adapter_alias_canary"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapter_alias")),
        sa.UniqueConstraint("adapter_id", "name", name=op.f("uq_adapter_alias_adapter_id_name")),
    )


def _create_uploads() -> None:
    op.create_table(
        "adapter_upload",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), sa.ForeignKey("tenant.id"), nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("source", sa.String(400), nullable=True),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("problems", sa.Text(), nullable=True),
        _version_id("version_id", nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "status IN ('uploading', 'validating', 'ready', 'rejected', 'cancelled')",
            name=op.f("ck_adapter_upload_status"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapter_upload")),
    )
    op.create_index(op.f("ix_adapter_upload_tenant_id"), "adapter_upload", ["tenant_id"])


def _create_gateways() -> None:
    op.create_table(
        "gateway",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.Column("cleared", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gateway")),
    )


def _create_bytes_claims() -> None:
    op.create_table(
        "adapter_bytes_claim",
        sa.Column("id", _ID, nullable=False),
        sa.Column("digest", sa.String(80), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("began_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("kind IN ('keep', 'remove')", name=op.f("ck_adapter_bytes_claim_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapter_bytes_claim")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_adapter_bytes_claim_digest"), "adapter_bytes_claim", ["digest"])


def _create_audit() -> None:
    op.create_table(
        "audit_event",
        sa.Column("id", _ID, nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("actor", sa.String(80), nullable=False),
        sa.Column("tenant_id", sa.String(40), sa.ForeignKey("tenant.id"), nullable=True),
        sa.Column("action", sa.String(60), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_event")),
    )
    op.create_index(op.f("ix_audit_event_tenant_id_at"), "audit_event", ["tenant_id", "at"])


def downgrade() -> None:
    """Take the revision back."""
    op.drop_table("audit_event")
    op.drop_table("adapter_bytes_claim")
    op.drop_table("gateway")
    op.drop_table("adapter_upload")
    op.drop_table("adapter_alias")
    op.drop_index("ix_adapter_version_deletion", "adapter_version")
    op.drop_index("ix_adapter_version_digest", "adapter_version")
    with op.batch_alter_table("adapter_version") as version:
        for name in ("status", "deletion"):
            version.drop_constraint(op.f(f"ck_adapter_version_{name}"), type_="check")
        for name in (
            *("warnings", "profile", "self_test", "is_pinned"),
            *("deleted_at", "num_deletions", "deletion", "retired_at", "status"),
        ):
            version.drop_column(name)
    with op.batch_alter_table("tenant") as tenant:
        for name, _ in reversed(_LIMITS):
            tenant.drop_constraint(op.f(f"ck_tenant_{name}"), type_="check")
            tenant.drop_column(name)
