"""`loraplex quota`: whether quotas, ledger and journal agree."""

import asyncio
from typing import TYPE_CHECKING

import typer

from loraplex.platform.cli.context import AsJson, CommandContext, DatabaseUrl, DataDir, run
from loraplex.platform.cli.output import counted, print_json, print_table

if TYPE_CHECKING:
    from loraplex.platform.reconciliation import Comparison

CONNECT_TIMEOUT_S = 2.0

app = typer.Typer(help="Whether quotas, ledger and journal agree.")


@app.command()
def verify(
    as_json: AsJson = False, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Compare what the store of quotas, the worker's journal and the database know.

    Changes nothing. Exits with 1 if they differ, or if usage of a request waits to be settled
    after its gateway died; a gateway that runs mends both.
    """

    async def work(context: CommandContext) -> "tuple[Comparison, bool]":
        from loraplex.engine.client import StreamClient
        from loraplex.platform.gateway import open_quotas
        from loraplex.platform.reconciliation import Comparer
        from loraplex.platform.stream import stream_address

        engine = StreamClient(*stream_address(context.settings), 1)
        engine.start()
        try:
            async with open_quotas(context.settings, context.database) as quotas:
                try:
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        await engine.wait_connected()
                except TimeoutError:
                    pass
                comparer = Comparer(context.database, quotas, engine, lambda: context.now)
                return await comparer.compare(), context.settings.redis_url is not None
        finally:
            await engine.close()

    found, is_shared = run(work, data_dir, database_url)
    if as_json:
        print_json([_summary(found, is_shared=is_shared)])
    else:
        _show(found, is_shared=is_shared)
    if found.overdue or _drift(found, is_shared=is_shared):
        raise typer.Exit(1)


def _summary(found: "Comparison", *, is_shared: bool) -> dict[str, object]:
    return {
        "open_intents": found.open_intents,
        "reserved": found.store_tokens if is_shared else found.open_tokens,
        "reserved_in": "store" if is_shared else "database",
        "unsettled": found.overdue,
        "drift": _drift(found, is_shared=is_shared),
        "budgets": found.num_budgets,
        "unknown_budgets": found.num_unknown,
        "journal": "absent" if found.hours is None else "compared",
        "requests": found.num_requests,
    }


def _drift(found: "Comparison", *, is_shared: bool) -> int:
    """Sum of all differences; 0 if and only if there are none."""
    holds = found.held_drift if is_shared else 0
    of_budgets = sum(abs(each.store - each.database) for each in found.budgets)
    of_hours = sum(abs(hour.requests) + abs(hour.tokens) for hour in found.hours or ())
    return holds + of_budgets + of_hours


def _show(found: "Comparison", *, is_shared: bool) -> None:
    typer.echo(f"{counted(found.open_intents, 'open intent')}, {found.overdue} of them overdue")
    if is_shared:
        typer.echo(f"reserved: {found.open_tokens} tokens, {found.store_tokens} in the store")
        if found.unheld_tokens:
            typer.echo(
                f"{found.unheld_tokens} tokens have no hold: the store was away, or is behind"
            )
        if found.held_drift:
            typer.echo(f"{found.held_drift} tokens are held for requests without intents")
    else:
        typer.echo(
            f"reserved: {found.open_tokens} tokens in the database; the gateway counts in its own "
            "memory, which cannot be asked"
        )
    typer.echo("\nBudgets")
    print_table(
        ("BUDGET", "DATABASE", "STORE"),
        ((each.known.name, each.database, each.store) for each in found.budgets),
        empty=f"{counted(found.num_budgets, 'budget')} of the store compared: no difference.",
    )
    if found.num_unknown:
        typer.echo(f"not compared, since the store does not know them: {found.num_unknown}")
    typer.echo("\nJournal")
    if found.hours is None:
        typer.echo("No worker answers: the ledger was not compared with its journal.")
        return
    print_table(
        ("HOUR", "REQUESTS MISSING", "TOKENS MISSING"),
        ((hour.start, hour.requests, hour.tokens) for hour in found.hours),
        empty=f"{counted(found.num_requests, 'request')} of the ledger compared: no difference.",
    )
