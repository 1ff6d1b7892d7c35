"""Projects of tenants, roles of keys, and people.

Revision: 0005, after 0004
"""

import sqlalchemy as sa
from alembic import op

from loraplex.tenants.columns import UtcDateTime

revision = "0005"
down_revision = "0004"

_TIERS = "priority,default,flex"
_HOST_LIMITS = ("adapter_host_floor_bytes", "adapter_host_cap_bytes")


def upgrade() -> None:
    """Apply the revision."""
    _create_projects()
    _extend_tenants()
    _extend_keys()
    _create_people()


def _tenant_id(*, nullable: bool = False) -> sa.Column[str]:
    return sa.Column("tenant_id", sa.String(40), sa.ForeignKey("tenant.id"), nullable=nullable)


def _create_projects() -> None:
    op.create_table(
        "project",
        sa.Column("id", sa.String(40), nullable=False),
        _tenant_id(),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("models", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("status IN ('active', 'archived')", name=op.f("ck_project_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_project_tenant_id_name")),
    )
    # Every tenant has a project of this name; its id follows from the tenant's.
    op.execute(
        "INSERT INTO project (id, tenant_id, name, status, created_at) "
        "SELECT 'prj_' || substr(id, 5), id, 'default', 'active', created_at FROM tenant"
    )


def _extend_tenants() -> None:
    with op.batch_alter_table("tenant") as tenant:
        tenant.add_column(sa.Column("version", sa.Integer(), nullable=False, server_default="1"))
        tenant.add_column(
            sa.Column("service_tiers", sa.String(40), nullable=False, server_default=_TIERS)
        )
        tenant.add_column(
            sa.Column("time_zone", sa.String(64), nullable=False, server_default="UTC")
        )
        tenant.add_column(
            sa.Column("earlier_time_zones", sa.Text(), nullable=False, server_default="")
        )
        tenant.add_column(sa.Column("deleted_at", UtcDateTime(), nullable=True))
        for name in _HOST_LIMITS:
            tenant.add_column(sa.Column(name, sa.BigInteger(), nullable=True))
            tenant.create_check_constraint(op.f(f"ck_tenant_{name}"), f"{name} > 0")
        tenant.drop_constraint(op.f("ck_tenant_status"), type_="check")
        tenant.create_check_constraint(
            op.f("ck_tenant_status"), "status IN ('active', 'suspended', 'deleting', 'deleted')"
        )


def _extend_keys() -> None:
    with op.batch_alter_table("api_key") as key:
        key.add_column(sa.Column("project_id", sa.String(40), nullable=True))
        key.add_column(sa.Column("role", sa.String(16), nullable=False, server_default="developer"))
        key.add_column(sa.Column("permissions", sa.Text(), nullable=True))
        key.add_column(sa.Column("models", sa.Text(), nullable=True))
        key.add_column(sa.Column("addresses", sa.Text(), nullable=True))
        key.add_column(sa.Column("previous_hash", sa.String(64), nullable=True))
        key.add_column(sa.Column("previous_until", UtcDateTime(), nullable=True))
        key.add_column(sa.Column("rotated_at", UtcDateTime(), nullable=True))
        key.create_check_constraint(
            op.f("ck_api_key_role"), "role IN ('tenant_admin', 'developer', 'read_only')"
        )
    op.execute("UPDATE api_key SET project_id = 'prj_' || substr(tenant_id, 5)")
    with op.batch_alter_table("api_key") as key:
        key.alter_column("project_id", existing_type=sa.String(40), nullable=False)
        key.create_foreign_key(
            op.f("fk_api_key_project_id_project"), "project", ["project_id"], ["id"]
        )
        key.create_index(op.f("ix_api_key_project_id"), ["project_id"])
    with op.batch_alter_table("admin_key") as admin:
        admin.add_column(sa.Column("role", sa.String(16), nullable=False, server_default="owner"))
        admin.create_check_constraint(
            op.f("ck_admin_key_role"), "role IN ('owner', 'operator', 'finance', 'read_only')"
        )


def _create_people() -> None:
    op.create_table(
        "person",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("password_hash", sa.String(200), nullable=True),
        sa.Column("oidc_issuer", sa.String(400), nullable=True),
        sa.Column("oidc_subject", sa.String(255), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("signed_in_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("status IN ('active', 'disabled')", name=op.f("ck_person_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_person")),
        sa.UniqueConstraint("email", name=op.f("uq_person_email")),
        sa.UniqueConstraint(
            "oidc_issuer", "oidc_subject", name=op.f("uq_person_oidc_issuer_oidc_subject")
        ),
    )
    op.create_table(
        "membership",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("person_id", sa.String(40), sa.ForeignKey("person.id"), nullable=False),
        _tenant_id(nullable=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("is_by_rule", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "role IN ('owner', 'operator', 'finance', 'tenant_admin', 'developer', 'read_only')",
            name=op.f("ck_membership_role"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_membership")),
    )
    op.create_index(op.f("ix_membership_person_id"), "membership", ["person_id"])
    op.create_index(op.f("ix_membership_tenant_id"), "membership", ["tenant_id"])
    op.create_table(
        "console_session",
        sa.Column("cookie_hash", sa.String(64), nullable=False),
        sa.Column("person_id", sa.String(40), sa.ForeignKey("person.id"), nullable=True),
        sa.Column("admin_key_id", sa.String(40), sa.ForeignKey("admin_key.id"), nullable=True),
        sa.Column("csrf", sa.String(64), nullable=False),
        sa.Column("user_agent", sa.String(200), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.Column("ends_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "(person_id IS NULL) <> (admin_key_id IS NULL)", name=op.f("ck_console_session_owner")
        ),
        sa.PrimaryKeyConstraint("cookie_hash", name=op.f("pk_console_session")),
    )
    op.create_index(op.f("ix_console_session_person_id"), "console_session", ["person_id"])
    op.create_table(
        "sign_in_state",
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("ends_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_sign_in_state")),
    )


def downgrade() -> None:
    """Take the revision back."""
    for table in ("sign_in_state", "console_session", "membership", "person"):
        op.drop_table(table)
    with op.batch_alter_table("admin_key") as admin:
        admin.drop_constraint(op.f("ck_admin_key_role"), type_="check")
        admin.drop_column("role")
    with op.batch_alter_table("api_key") as key:
        key.drop_constraint(op.f("ck_api_key_role"), type_="check")
        key.drop_constraint(op.f("fk_api_key_project_id_project"), type_="foreignkey")
        key.drop_index(op.f("ix_api_key_project_id"))
        for name in (
            *("rotated_at", "previous_until", "previous_hash", "addresses", "models"),
            *("permissions", "role", "project_id"),
        ):
            key.drop_column(name)
    _take_back_tenants()
    op.drop_table("project")


def _take_back_tenants() -> None:
    with op.batch_alter_table("tenant") as tenant:
        tenant.drop_constraint(op.f("ck_tenant_status"), type_="check")
        tenant.create_check_constraint(
            op.f("ck_tenant_status"), "status IN ('active', 'suspended')"
        )
        for name in reversed(_HOST_LIMITS):
            tenant.drop_constraint(op.f(f"ck_tenant_{name}"), type_="check")
            tenant.drop_column(name)
        for name in ("deleted_at", "earlier_time_zones", "time_zone", "service_tiers", "version"):
            tenant.drop_column(name)
