"""`loraplex usage`: what a tenant's requests used."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import AsJson, CommandContext, DatabaseUrl, DataDir, run
from loraplex.platform.cli.output import counted, print_json, print_table

if TYPE_CHECKING:
    from loraplex.tenants.ledger import UsageRecord
    from loraplex.tenants.usage_sums import UsageSum

app = typer.Typer(help="Usage of a tenant.")

Instant = Annotated[datetime | None, typer.Option(help="UTC.")]


@app.callback()
def usage() -> None:
    """Usage of a tenant."""


@app.command()
def show(
    tenant: Annotated[str, typer.Option(help="Name of the tenant.")],
    since: Instant = None,
    until: Instant = None,
    limit: Annotated[int, typer.Option(min=1, help="Show only the newest so many.")] = 1000,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Show the requests accepted from `since` on and before `until`, oldest first."""

    async def work(context: CommandContext) -> "tuple[list[UsageRecord], list[UsageSum]]":
        from loraplex.tenants import directory
        from loraplex.tenants.ledger import UsageFilter, find_usage
        from loraplex.tenants.usage_sums import sum_usage

        async with context.database.reader() as session:
            owner = await directory.get_by_name(session, tenant)
            asked = UsageFilter(tenant_id=owner.id, since=_in_utc(since), until=_in_utc(until))
            newest = await find_usage(session, asked, limit)
            return newest[::-1], await sum_usage(session, asked)

    records, sums = run(work, data_dir, database_url)
    total = sum(each.requests for each in sums)
    if total > len(records):
        typer.echo(
            f"Only the newest {limit} of {total} are shown; raise --limit for more.", err=True
        )
    if as_json:
        print_json(_as_json(tenant, record) for record in records)
        return
    _print(records)
    for each in sums:
        typer.echo(_sentence(each))


def _print(records: "list[UsageRecord]") -> None:
    print_table(
        (
            "ACCEPTED",
            "REQUEST",
            "MODEL",
            "PROMPT",
            "CACHED",
            "OUTPUT",
            "FINISH",
            "QUEUE MS",
            "COST",
        ),
        (
            (
                r.accepted_at,
                r.request_id,
                r.model,
                r.prompt_tokens,
                r.cached_tokens,
                r.completion_tokens,
                r.finish_reason,
                round(r.queue_ms, 1),
                _cost(r.currency, r.cost_pico),
            )
            for r in records
        ),
        empty="No requests in this time.",
    )


def _in_utc(moment: datetime | None) -> datetime | None:
    return moment and moment.replace(tzinfo=UTC)


def _cost(currency: str | None, pico: int) -> str:
    from loraplex.tenants.money import decimal_of

    return "-" if currency is None else f"{decimal_of(pico)} {currency}"


def _sentence(total: "UsageSum") -> str:
    return (
        f"In all {counted(total.requests, 'request')}, {total.prompt_tokens} prompt tokens "
        f"({total.cached_tokens} cached), {total.completion_tokens} output tokens, "
        f"{'without a price' if total.currency is None else _cost(total.currency, total.cost_pico)}"
    )


def _as_json(tenant: str, record: "UsageRecord") -> dict[str, object]:
    fields = asdict(record)
    del fields["tenant_id"], fields["requested_model"]
    # As text: a cost may have more digits than a reader's numbers.
    fields["cost_pico"] = str(record.cost_pico)
    return {"request_id": fields.pop("request_id"), "tenant": tenant, **fields}
