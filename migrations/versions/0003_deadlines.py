"""Deadlines of tenants.

Revision: 0003, after 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Apply the revision."""
    with op.batch_alter_table("tenant") as tenant:
        tenant.add_column(sa.Column("ttft_deadline_ms", sa.Integer(), nullable=True))
        tenant.create_check_constraint(op.f("ck_tenant_ttft_deadline_ms"), "ttft_deadline_ms > 0")


def downgrade() -> None:
    """Take the revision back."""
    with op.batch_alter_table("tenant") as tenant:
        tenant.drop_constraint(op.f("ck_tenant_ttft_deadline_ms"), type_="check")
        tenant.drop_column("ttft_deadline_ms")
