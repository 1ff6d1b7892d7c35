"""`loraplex price`: what tokens cost, from which time on."""

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import AsJson, CommandContext, DatabaseUrl, DataDir, run
from loraplex.platform.cli.output import print_json, print_table

if TYPE_CHECKING:
    from loraplex.tenants.prices import Price

app = typer.Typer(help="Prices of tokens, from a time on.")

Amount = Annotated[str, typer.Option(help="Per million tokens, such as 0.15; 6 digits at most.")]


@app.command("set")
def set_(
    currency: Annotated[str, typer.Option(help="Three letters, such as EUR.")],
    prompt: Amount,
    completion: Amount,
    cached: Annotated[
        str | None,
        typer.Option(help="Prompt tokens from the prefix cache. Default: as --prompt."),
    ] = None,
    valid_from: Annotated[datetime | None, typer.Option(help="UTC. Default: now.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Set the prices from a time on; requests that were admitted before keep theirs."""

    async def work(context: CommandContext) -> "Price":
        from loraplex.tenants.money import micros_of
        from loraplex.tenants.prices import TokenPrices, set_price

        tokens = TokenPrices(
            prompt_micros=micros_of(prompt, "prompt"),
            cached_micros=micros_of(prompt if cached is None else cached, "cached"),
            completion_micros=micros_of(completion, "completion"),
        )
        start = valid_from.replace(tzinfo=UTC) if valid_from else context.now
        async with context.database.session() as session:
            return await set_price(
                session, currency, tokens, start, context.act(), secrets.token_bytes
            )

    price = run(work, data_dir, database_url)
    if as_json:
        print_json([_as_json(price)])
        return
    typer.echo(f"From {price.valid_from:%Y-%m-%d %H:%M:%S} UTC on: {_shown(price)}.")


@app.command("list")
def list_(
    as_json: AsJson = False, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """List all prices there were, are and will be, the last first."""

    async def work(context: CommandContext) -> "list[Price]":
        from loraplex.tenants.prices import list_prices

        async with context.database.reader() as session:
            return await list_prices(session)

    prices = run(work, data_dir, database_url)
    if as_json:
        print_json(_as_json(price) for price in prices)
        return
    print_table(
        ("VALID FROM", "CURRENCY", "PROMPT", "CACHED", "COMPLETION", "ID"),
        ((price.valid_from, price.currency, *_amounts(price), price.id) for price in prices),
        empty="There are no prices, so usage costs nothing; set some with: loraplex price set",
    )


def _amounts(price: "Price") -> list[str]:
    from loraplex.tenants.money import decimal_of_micros

    tokens = price.tokens
    every = (tokens.prompt_micros, tokens.cached_micros, tokens.completion_micros)
    return [decimal_of_micros(micros) for micros in every]


def _shown(price: "Price") -> str:
    prompt, cached, completion = _amounts(price)
    return (
        f"{prompt} {price.currency} per million prompt tokens, {cached} where they were cached, "
        f"{completion} per million completion tokens"
    )


def _as_json(price: "Price") -> dict[str, object]:
    tokens = price.tokens
    return {
        "id": price.id,
        "currency": price.currency,
        "prompt_micros": tokens.prompt_micros,
        "cached_micros": tokens.cached_micros,
        "completion_micros": tokens.completion_micros,
        "valid_from": price.valid_from,
        "created_at": price.created_at,
    }
