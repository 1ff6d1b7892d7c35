"""Limits of every scope, intents of requests, a chained audit log, a count of changes.

Revision: 0006, after 0005
"""

import sqlalchemy as sa
from alembic import op

from loraplex.tenants.columns import UtcDateTime

revision = "0006"
down_revision = "0005"

_OLD_LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency")
_KEY_COLUMNS = (
    "project_id, key_hash, previous_hash, previous_until, role, permissions, models, addresses, "
    "expires_at, revoked_at"
)
"""All but what notes a key's uses."""
_CATALOGUE_SOURCES = (
    ("tenant", None),
    ("project", None),
    ("api_key", _KEY_COLUMNS),
    ("limit_policy", None),
    ("price", None),
    ("adapter", None),
    ("adapter_version", None),
    ("adapter_alias", None),
)
"""Tables that requests are admitted by, and where not all columns matter, which do."""


def upgrade() -> None:
    """Apply the revision."""
    _create_limits()
    _extend_deployment()
    _create_usage_retention()
    _create_intents()
    _extend_usage()
    _chain_audit()
    _create_catalogue()


def _tenant_id(*, nullable: bool = False) -> sa.Column[str]:
    return sa.Column("tenant_id", sa.String(40), sa.ForeignKey("tenant.id"), nullable=nullable)


def _create_limits() -> None:
    op.create_table(
        "limit_policy",
        sa.Column("id", sa.String(40), nullable=False),
        _tenant_id(),
        sa.Column("scope", sa.String(8), nullable=False),
        sa.Column("scope_id", sa.String(40), nullable=False),
        sa.Column("dimension", sa.String(32), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("burst", sa.BigInteger(), nullable=True),
        sa.Column("mode", sa.String(8), nullable=False),
        sa.Column("on_store_loss", sa.String(8), nullable=True),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "scope IN ('tenant', 'project', 'key', 'adapter')", name=op.f("ck_limit_policy_scope")
        ),
        sa.CheckConstraint("mode IN ('enforce', 'shadow')", name=op.f("ck_limit_policy_mode")),
        sa.CheckConstraint(
            "on_store_loss IN ('local', 'open', 'closed')",
            name=op.f("ck_limit_policy_on_store_loss"),
        ),
        sa.CheckConstraint("value >= 0", name=op.f("ck_limit_policy_value")),
        sa.CheckConstraint("burst > 0", name=op.f("ck_limit_policy_burst")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_limit_policy")),
        sa.UniqueConstraint(
            *("tenant_id", "scope", "scope_id", "dimension"),
            name=op.f("uq_limit_policy_tenant_id_scope_scope_id_dimension"),
        ),
    )
    for name in _OLD_LIMITS:
        op.execute(
            "INSERT INTO limit_policy "  # noqa: S608  names of our own
            "(id, tenant_id, scope, scope_id, dimension, value, mode, updated_at) "
            f"SELECT 'lim_{name[0]}' || substr(id, 5), id, 'tenant', id, '{name}', {name}, "
            f"'enforce', created_at FROM tenant WHERE {name} IS NOT NULL"
        )
    with op.batch_alter_table("tenant") as tenant:
        for name in _OLD_LIMITS:
            tenant.drop_constraint(op.f(f"ck_tenant_{name}"), type_="check")
            tenant.drop_column(name)
    op.create_table(
        "budget_epoch",
        *_budget(),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            *("tenant_id", "scope", "scope_id", "dimension", "period_start"),
            name=op.f("pk_budget_epoch"),
        ),
    )
    op.create_table(
        "budget_adjustment",
        sa.Column("id", sa.String(40), nullable=False),
        *_budget(),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(200), nullable=False),
        sa.Column("actor", sa.String(80), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budget_adjustment")),
    )
    op.create_index(
        "ix_budget_adjustment_tenant_id_period_start",
        "budget_adjustment",
        ["tenant_id", "period_start"],
    )


def _budget() -> list[sa.Column[str]]:
    """The columns that name a budget in one period."""
    return [
        _tenant_id(),
        sa.Column("scope", sa.String(8), nullable=False),
        sa.Column("scope_id", sa.String(40), nullable=False),
        sa.Column("dimension", sa.String(32), nullable=False),
        sa.Column("period_start", UtcDateTime(), nullable=False),
    ]


def _create_usage_retention() -> None:
    op.create_table(
        "usage_retention",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kept_from", UtcDateTime(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_usage_retention_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_retention")),
    )


def _extend_deployment() -> None:
    with op.batch_alter_table("deployment") as deployment:
        deployment.add_column(
            sa.Column("first_epoch", sa.BigInteger(), nullable=False, server_default="0")
        )


def _create_intents() -> None:
    op.create_table(
        "usage_intent",
        sa.Column("request_id", sa.String(80), nullable=False),
        _tenant_id(),
        sa.Column("project_id", sa.String(40), sa.ForeignKey("project.id"), nullable=False),
        sa.Column("key_id", sa.String(40), sa.ForeignKey("api_key.id"), nullable=False),
        sa.Column("gateway_id", sa.String(40), nullable=False),
        sa.Column("requested_model", sa.String(200), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("adapter_digest", sa.String(80), nullable=True),
        sa.Column("price_id", sa.String(40), sa.ForeignKey("price.id"), nullable=True),
        sa.Column("service_tier", sa.String(16), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("max_output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("max_cost_pico", sa.BigInteger(), nullable=False),
        sa.Column("delivered_tokens", sa.BigInteger(), nullable=False),
        sa.Column("accepted_at", UtcDateTime(), nullable=False),
        sa.Column("lease_until", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_usage_intent")),
    )
    op.create_index(
        "ix_usage_intent_tenant_id_accepted_at", "usage_intent", ["tenant_id", "accepted_at"]
    )
    op.create_index("ix_usage_intent_lease_until", "usage_intent", ["lease_until"])


def _extend_usage() -> None:
    with op.batch_alter_table("usage") as usage:
        usage.add_column(sa.Column("project_id", sa.String(40), nullable=True))
        usage.add_column(
            sa.Column("source", sa.String(16), nullable=False, server_default="measured")
        )
        usage.add_column(
            sa.Column("billable", sa.Boolean(), nullable=False, server_default=sa.true())
        )
        usage.add_column(sa.Column("service_tier", sa.String(16), nullable=True))
        usage.add_column(sa.Column("output_digest", sa.String(32), nullable=True))
        usage.create_check_constraint(
            op.f("ck_usage_source"), "source IN ('measured', 'journal', 'estimated')"
        )
    op.execute("UPDATE usage SET project_id = 'prj_' || substr(tenant_id, 5)")
    op.execute("UPDATE usage SET billable = (finish_reason <> 'error')")
    with op.batch_alter_table("usage") as usage:
        usage.alter_column("project_id", existing_type=sa.String(40), nullable=False)
        usage.create_foreign_key(
            op.f("fk_usage_project_id_project"), "project", ["project_id"], ["id"]
        )


def _chain_audit() -> None:
    with op.batch_alter_table("audit_event") as event:
        event.add_column(sa.Column("actor_kind", sa.String(16), nullable=True))
        event.add_column(sa.Column("request_id", sa.String(80), nullable=True))
        event.add_column(sa.Column("previous_hash", sa.String(64), nullable=True))
        event.add_column(sa.Column("hash", sa.String(64), nullable=True))
    if op.get_context().dialect.name == "sqlite":
        for kind in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_event_{kind.lower()} BEFORE {kind} ON audit_event "
                "BEGIN SELECT RAISE(ABORT, 'audit events are never changed'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION keep_audit_event() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'audit events are never changed'; END $$"
    )
    for kind, each in (("UPDATE OR DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
        op.execute(
            f"CREATE TRIGGER audit_event_{each.lower()} BEFORE {kind} ON audit_event "
            f"FOR EACH {each} EXECUTE FUNCTION keep_audit_event()"
        )


def _unchain_audit(*, on_sqlite: bool) -> None:
    if on_sqlite:
        for kind in ("update", "delete"):
            op.execute(f"DROP TRIGGER audit_event_{kind}")
    else:
        for each in ("row", "statement"):
            op.execute(f"DROP TRIGGER audit_event_{each} ON audit_event")
        op.execute("DROP FUNCTION keep_audit_event()")
    with op.batch_alter_table("audit_event") as event:
        for name in ("hash", "previous_hash", "request_id", "actor_kind"):
            event.drop_column(name)


def _create_catalogue() -> None:
    op.create_table(
        "catalogue",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_catalogue_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_catalogue")),
    )
    op.execute("INSERT INTO catalogue (id, version) VALUES (1, 1)")
    if op.get_context().dialect.name == "sqlite":
        _count_changes_on_sqlite()
    else:
        _count_changes_on_postgresql()


def _count_changes_on_sqlite() -> None:
    count = "BEGIN UPDATE catalogue SET version = version + 1 WHERE id = 1; END"
    for table, columns in _CATALOGUE_SOURCES:
        update = f"UPDATE OF {columns}" if columns else "UPDATE"
        for event, kind in (("insert", "INSERT"), ("update", update), ("delete", "DELETE")):
            op.execute(f"CREATE TRIGGER catalogue_{table}_{event} AFTER {kind} ON {table} {count}")


def _count_changes_on_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION count_catalogue_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "UPDATE catalogue SET version = version + 1 WHERE id = 1; RETURN NULL; END $$"
    )
    for table, columns in _CATALOGUE_SOURCES:
        update = f"UPDATE OF {columns}" if columns else "UPDATE"
        op.execute(
            f"CREATE TRIGGER catalogue_{table} AFTER INSERT OR {update} OR DELETE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION count_catalogue_change()"
        )


def downgrade() -> None:
    """Take the revision back."""
    on_sqlite = op.get_context().dialect.name == "sqlite"
    for table, _ in _CATALOGUE_SOURCES:
        if on_sqlite:
            for event in ("insert", "update", "delete"):
                op.execute(f"DROP TRIGGER catalogue_{table}_{event}")
        else:
            op.execute(f"DROP TRIGGER catalogue_{table} ON {table}")
    if not on_sqlite:
        op.execute("DROP FUNCTION count_catalogue_change()")
    op.drop_table("catalogue")
    _unchain_audit(on_sqlite=on_sqlite)
    with op.batch_alter_table("usage") as usage:
        usage.drop_constraint(op.f("fk_usage_project_id_project"), type_="foreignkey")
        usage.drop_constraint(op.f("ck_usage_source"), type_="check")
        for name in ("output_digest", "service_tier", "billable", "source", "project_id"):
            usage.drop_column(name)
    op.drop_table("usage_intent")
    op.drop_table("usage_retention")
    with op.batch_alter_table("deployment") as deployment:
        deployment.drop_column("first_epoch")
    op.drop_table("budget_adjustment")
    op.drop_table("budget_epoch")
    _take_back_limits()


def _take_back_limits() -> None:
    with op.batch_alter_table("tenant") as tenant:
        for name in _OLD_LIMITS:
            tenant.add_column(sa.Column(name, sa.Integer(), nullable=True))
            tenant.create_check_constraint(op.f(f"ck_tenant_{name}"), f"{name} > 0")
    for name in _OLD_LIMITS:
        op.execute(
            f"UPDATE tenant SET {name} = (SELECT value FROM limit_policy AS own "  # noqa: S608  names of our own
            "WHERE own.tenant_id = tenant.id AND own.scope = 'tenant' "
            f"AND own.dimension = '{name}' AND own.value > 0)"
        )
    op.drop_table("limit_policy")
