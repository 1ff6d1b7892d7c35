"""Admin keys, prices, costs on usage, and POSTs that may be repeated.

Revision: 0002, after 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "admin_key",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("label", sa.String(length=100), nullable=False),
        sa.Column("key_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_admin_key")),
    )
    op.create_table(
        "price",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("prompt_micros", sa.BigInteger(), nullable=False),
        sa.Column("cached_micros", sa.BigInteger(), nullable=False),
        sa.Column("completion_micros", sa.BigInteger(), nullable=False),
        sa.Column("valid_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "prompt_micros >= 0 AND cached_micros >= 0 AND completion_micros >= 0",
            name=op.f("ck_price_micros"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price")),
    )
    op.create_index("ix_price_valid_from", "price", ["valid_from"])
    op.create_table(
        "idempotency",
        sa.Column("owner", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("nonce", sa.String(length=64), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("owner", "key", name=op.f("pk_idempotency")),
    )
    op.create_index("ix_idempotency_claimed_at", "idempotency", ["claimed_at"])
    with op.batch_alter_table("usage") as usage:
        usage.add_column(sa.Column("price_id", sa.String(length=40), nullable=True))
        usage.add_column(sa.Column("currency", sa.String(length=3), nullable=True))
        # What ran before there were prices costs nothing.
        usage.add_column(
            sa.Column("cost_pico", sa.BigInteger(), nullable=False, server_default="0")
        )
        usage.create_check_constraint(op.f("ck_usage_cost_pico"), "cost_pico >= 0")
        usage.create_foreign_key(op.f("fk_usage_price_id_price"), "price", ["price_id"], ["id"])
    with op.batch_alter_table("usage") as usage:
        usage.alter_column("cost_pico", server_default=None)
    op.create_index("ix_usage_accepted_at", "usage", ["accepted_at"])


def downgrade() -> None:
    """Take the revision back."""
    op.drop_index("ix_usage_accepted_at", table_name="usage")
    with op.batch_alter_table("usage") as usage:
        usage.drop_constraint(op.f("fk_usage_price_id_price"), type_="foreignkey")
        usage.drop_constraint(op.f("ck_usage_cost_pico"), type_="check")
        usage.drop_column("cost_pico")
        usage.drop_column("currency")
        usage.drop_column("price_id")
    op.drop_table("idempotency")
    op.drop_table("price")
    op.drop_table("admin_key")
