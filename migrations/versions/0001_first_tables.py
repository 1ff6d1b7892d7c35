"""Tenants, their keys, adapters and usage.

Revision: 0001, the first
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None


def big_id() -> sa.types.TypeEngine[int]:
    """A 64-bit row number; SQLite numbers rows by itself only where the key is INTEGER."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Apply the revision."""
    create_tenants()
    create_adapters()
    create_usage()


def downgrade() -> None:
    """Take the revision back."""
    op.drop_table("usage")
    op.drop_table("adapter_version")
    op.drop_table("api_key")
    op.drop_table("adapter")
    op.drop_table("tenant")
    op.drop_table("deployment")


def create_tenants() -> None:
    """Tenants, their keys, and the mark of the secret."""
    op.create_table(
        "deployment",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("secret_fingerprint", sa.String(length=64), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_deployment_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deployment")),
    )
    op.create_table(
        "tenant",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("tokens_per_minute", sa.Integer(), nullable=True),
        sa.Column("concurrency", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("status IN ('active', 'suspended')", name=op.f("ck_tenant_status")),
        sa.CheckConstraint("concurrency > 0", name=op.f("ck_tenant_concurrency")),
        sa.CheckConstraint("requests_per_minute > 0", name=op.f("ck_tenant_requests_per_minute")),
        sa.CheckConstraint("tokens_per_minute > 0", name=op.f("ck_tenant_tokens_per_minute")),
        sa.CheckConstraint("weight > 0", name=op.f("ck_tenant_weight")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenant")),
        sa.UniqueConstraint("name", name=op.f("uq_tenant_name")),
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("label", sa.String(length=100), nullable=False),
        sa.Column("key_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_api_key_tenant_id_tenant")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
    )
    op.create_index("ix_api_key_tenant_id", "api_key", ["tenant_id"])


def create_adapters() -> None:
    """Names of adapters and their versions."""
    op.create_table(
        "adapter",
        sa.Column("id", big_id(), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_adapter_tenant_id_tenant")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapter")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_adapter_tenant_id_name")),
    )
    op.create_table(
        "adapter_version",
        sa.Column("id", big_id(), nullable=False),
        sa.Column("adapter_id", big_id(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=80), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("base_model", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("number >= 1", name=op.f("ck_adapter_version_number")),
        sa.ForeignKeyConstraint(
            ["adapter_id"], ["adapter.id"], name=op.f("fk_adapter_version_adapter_id_adapter")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapter_version")),
        sa.UniqueConstraint(
            "adapter_id", "digest", name=op.f("uq_adapter_version_adapter_id_digest")
        ),
        sa.UniqueConstraint(
            "adapter_id", "number", name=op.f("uq_adapter_version_adapter_id_number")
        ),
    )


def create_usage() -> None:
    """What requests used."""
    op.create_table(
        "usage",
        sa.Column("id", big_id(), nullable=False),
        sa.Column("request_id", sa.String(length=80), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("key_id", sa.String(length=40), nullable=False),
        sa.Column("requested_model", sa.String(length=200), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("adapter_digest", sa.String(length=80), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("finish_reason", sa.String(length=16), nullable=False),
        sa.Column("accepted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("first_token_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("queue_ms", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "finish_reason IN ('stop', 'length', 'abort', 'error')",
            name=op.f("ck_usage_finish_reason"),
        ),
        sa.CheckConstraint(
            "cached_tokens >= 0 AND cached_tokens <= prompt_tokens AND completion_tokens >= 0",
            name=op.f("ck_usage_tokens"),
        ),
        sa.ForeignKeyConstraint(["key_id"], ["api_key.id"], name=op.f("fk_usage_key_id_api_key")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_usage_tenant_id_tenant")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage")),
        sa.UniqueConstraint("request_id", name=op.f("uq_usage_request_id")),
    )
    op.create_index("ix_usage_tenant_id_accepted_at", "usage", ["tenant_id", "accepted_at"])
