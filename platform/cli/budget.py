"""`loraplex budget`: what budgets of this month have used, corrected."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from loraplex.platform.cli.context import (
    AsJson,
    CommandContext,
    DatabaseUrl,
    DataDir,
    TenantName,
    run,
)
from loraplex.platform.cli.limit import Adapter, Key, Project, owner_of
from loraplex.platform.cli.output import print_json, print_table

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from loraplex.tenants.budget_adjustments import AdjustmentRecord
    from loraplex.tenants.budgets import Budget, BudgetUse
    from loraplex.tenants.limit_parents import LimitOwner

app = typer.Typer(help="What budgets of this month have used, corrected.")

Dimension = Literal["tokens_per_month", "cost_micros_per_month"]
Reason = Annotated[str, typer.Option(help="Why; the audit log has it.")]


@app.command("list")
def list_(
    tenant: TenantName,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """List all adjustments of a tenant's budgets, and of what it has, oldest first."""

    async def work(context: CommandContext) -> "list[AdjustmentRecord]":
        from loraplex.tenants import budget_adjustments, directory

        async with context.database.reader() as session:
            owner = await directory.get_by_name(session, tenant)
            return await budget_adjustments.list_adjustments(session, owner.id)

    found = run(work, data_dir, database_url)
    if as_json:
        print_json(asdict(record) for record in found)
        return
    print_table(
        ("SCOPE", "OF", "DIMENSION", "MONTH FROM", "AMOUNT", "BY", "REASON"),
        (
            (
                *(record.scope, record.scope_id, record.dimension, record.period_start),
                *(record.amount, record.actor, record.reason),
            )
            for record in found
        ),
        empty="No budget was adjusted.",
    )


@app.command()
def adjust(
    tenant: TenantName,
    dimension: Dimension,
    amount: Annotated[int, typer.Argument(help="Added to the use; negative gives budget back.")],
    reason: Reason,
    project: Project = None,
    key: Key = None,
    adapter: Adapter = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Correct what a budget has used this month; the ledger stays as it is."""

    async def work(context: CommandContext) -> "BudgetUse":
        from secrets import token_bytes

        from loraplex.tenants import budget_adjustments
        from loraplex.tenants.budget_adjustments import Adjustment

        async with context.database.session() as session:
            of = await owner_of(session, tenant, project=project, key=key, adapter=adapter)
            budget = await _budget(session, context, of, dimension)
            wanted = Adjustment(budget, amount, reason)
            return await budget_adjustments.adjust(session, wanted, context.act(), token_bytes)

    _tell(dimension, run(work, data_dir, database_url))


@app.command()
def reset(
    tenant: TenantName,
    dimension: Dimension,
    reason: Reason,
    project: Project = None,
    key: Key = None,
    adapter: Adapter = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Take off all that a budget has used this month, but for what open requests reserve."""

    async def work(context: CommandContext) -> "BudgetUse":
        from secrets import token_bytes

        from loraplex.tenants import budget_adjustments

        act = context.act()
        async with context.database.session() as session:
            of = await owner_of(session, tenant, project=project, key=key, adapter=adapter)
            budget = await _budget(session, context, of, dimension)
            return (await budget_adjustments.reset(session, budget, reason, act, token_bytes))[1]

    _tell(dimension, run(work, data_dir, database_url))


async def _budget(
    session: "AsyncSession", context: CommandContext, of: "LimitOwner", dimension: Dimension
) -> "Budget":
    from loraplex.tenants import directory
    from loraplex.tenants.budgets import Budget

    month = (await directory.get(session, of.tenant_id)).calendar.month_of(context.now)
    return Budget(of.tenant_id, of.scope, of.scope_id, dimension, month.start, month.end)


def _tell(dimension: Dimension, use: "BudgetUse") -> None:
    typer.echo(f"{dimension}: {use.spent} spent, {use.total - use.spent} reserved.")
