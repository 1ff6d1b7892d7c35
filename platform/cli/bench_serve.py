"""`loraplex bench serve`: load over HTTP on a running server."""

import asyncio
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from loraplex.platform.cli.context import CommandFailed, failure, reporting_errors
from loraplex.platform.cli.output import print_json, print_table, show_progress

if TYPE_CHECKING:
    from loraplex.platform.load.arrivals import Arrival

Url = Annotated[str, typer.Option(help="Root of the server, like http://127.0.0.1:8000.")]
Key = Annotated[str | None, typer.Option(help="API key.", show_default=False)]
Models = Annotated[
    list[str], typer.Option("--model", help="Model to name; again for each further one.")
]
Zipf = Annotated[
    float | None,
    typer.Option(
        min=0, help="Draw models by Zipf with this exponent. Default: by turns.", show_default=False
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(help="Requests per second, Poisson. Default: 1.", show_default=False),
]
NumRequests = Annotated[
    int | None,
    typer.Option(
        min=1, help="Requests in all. Default: 60, or the whole trace.", show_default=False
    ),
]
InputTokens = Annotated[
    int | None, typer.Option(min=1, help="Length of a prompt. Default: 64.", show_default=False)
]
OutputTokens = Annotated[
    int | None, typer.Option(min=1, help="Length of an answer. Default: 32.", show_default=False)
]
Trace = Annotated[
    Path | None,
    typer.Option(help="CSV or JSON lines of arrivals and lengths.", show_default=False),
]
Speed = Annotated[
    float | None,
    typer.Option(help="Divides the times of a trace. Default: 1.", show_default=False),
]
EndpointName = Annotated[Literal["completions", "chat"], typer.Option(help="Which route to call.")]
SloMs = float | None
MaxSeconds = Annotated[float, typer.Option(help="The run is cut off after this time.")]
MaxConcurrency = Annotated[int, typer.Option(min=1, help="Requests in flight; see below.")]


def serve(
    url: Url,
    model: Models,
    key: Key = None,
    rate: Rate = None,
    num_requests: NumRequests = None,
    input_tokens: InputTokens = None,
    output_tokens: OutputTokens = None,
    trace: Trace = None,
    speed: Speed = None,
    zipf: Zipf = None,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals, models and prompts.")] = 0,
    endpoint: EndpointName = "completions",
    slo_ttft_ms: Annotated[SloMs, typer.Option(help="Goodput: TTFT at most.")] = None,
    slo_tpot_ms: Annotated[SloMs, typer.Option(help="Goodput: TPOT at most.")] = None,
    max_seconds: MaxSeconds = 120.0,
    max_concurrency: MaxConcurrency = 256,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Load another machine.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Send requests at given times, whatever the server makes of them, and report how it did.

    A request that is due while --max-concurrency others run is not sent and counts as an error.
    """
    with reporting_errors(), _refusals():
        _check(rate=rate, speed=speed, max_seconds=max_seconds)
        _check(slo_ttft_ms=slo_ttft_ms, slo_tpot_ms=slo_tpot_ms)
        poisson = {"--rate": rate, "--input-tokens": input_tokens, "--output-tokens": output_tokens}
        if trace is None:
            _exclude("for a --trace only", {"--speed": speed})
            arrivals = _poisson(rate or 1.0, num_requests, (input_tokens, output_tokens), seed)
        else:
            _exclude("what a --trace decides", poisson)
            arrivals = _traced(trace, speed or 1.0, num_requests)
        from loraplex.platform.load.arrivals import with_models

        arrivals = with_models(arrivals, model, zipf, seed)
        bounds = {"max_seconds": max_seconds, "max_concurrency": max_concurrency}
        slo = {"ttft_ms": slo_ttft_ms, "tpot_ms": slo_tpot_ms}
        from loraplex.platform.load.run import check_url

        root = check_url(url, allow_remote=allow_remote)
        report = asyncio.run(_run(root, key, arrivals, endpoint, bounds, slo, seed))
    typer.echo("", err=True)
    if as_json:
        print_json([report])
    else:
        _show(report)


@contextmanager
def _refusals() -> Iterator[None]:
    if importlib.util.find_spec("httpx") is None:
        raise CommandFailed("load is made with httpx: pip install 'loraplex[bench]'")
    from loraplex.platform.load.errors import LoadRefused

    try:
        yield
    except LoadRefused as error:
        raise failure(str(error)) from None


async def _run(
    url: str,
    key: str | None,
    arrivals: "list[Arrival]",
    endpoint: Literal["completions", "chat"],
    bounds: Mapping[str, Any],
    slo: Mapping[str, float | None],
    seed: int,
) -> dict[str, Any]:
    from loraplex.platform.load.client import probe
    from loraplex.platform.load.run import Bounds, new_client, run_load
    from loraplex.platform.load.summary import Slo, summarise_run

    async with new_client(url, key, bounds["max_concurrency"]) as client:
        target = await probe(client, endpoint, arrivals[0].model)
        outcomes = await run_load(target, arrivals, Bounds(**bounds), seed, show_progress)
    asked = {
        "url": url,
        "endpoint": endpoint,
        "ignore_eos": target.ignore_eos,
        "seed": seed,
        "slo": dict(slo),
    }
    return asked | summarise_run(outcomes, Slo(**slo))


def _poisson(
    rate: float, num_requests: int | None, lengths: tuple[int | None, int | None], seed: int
) -> "list[Arrival]":
    from loraplex.platform.load.arrivals import poisson

    return list(poisson(rate, num_requests or 60, (lengths[0] or 64, lengths[1] or 32), seed))


def _traced(trace: Path, speed: float, num_requests: int | None) -> "list[Arrival]":
    from loraplex.platform.load.traces import read_trace

    return read_trace(trace, speed, num_requests)


def _check(**options: float | None) -> None:
    """Refuse what is not above 0, infinity and no number among it."""
    for name, value in options.items():
        if value is not None and not 0 < value < float("inf"):
            raise CommandFailed(f"--{name.replace('_', '-')} is {value}; it must be above 0")


def _exclude(reason: str, options: Mapping[str, float | None]) -> None:
    for name, value in options.items():
        if value is not None:
            raise CommandFailed(f"{name} is {reason}; leave one of them out")


def _show(report: Mapping[str, Any]) -> None:
    asked, sent = report["asked_per_s"], report["sent_per_s"]
    typer.echo(
        f"{report['duration_s']:.1f} s on {report['url']}, {report['endpoint']}; requests per "
        f"second: asked {_short(asked)}, sent {_short(sent)}; lag of this client, ms: "
        f"{_percentiles(report['lag_ms'])}; "
        f"ignore_eos {'on' if report['ignore_eos'] else 'refused'}"
    )
    groups = {"all": report["all"], **report["models"]}
    print_table(
        (
            *("MODEL", "REQUESTS", "OK", "ERRORS", "TTFT MS", "TPOT MS", "E2E MS"),
            *("GOOD", "GOOD/S", "TOKENS/S"),
        ),
        (
            (
                name,
                group["requests"],
                group["ok"],
                ", ".join(f"{kind}: {count}" for kind, count in group["errors"].items()) or None,
                *(_percentiles(group[key]) for key in ("ttft_ms", "tpot_ms", "e2e_ms")),
                f"{group['good_share']:.1%}",
                _short(group["goodput_per_s"]),
                _short(group["output_tokens_per_s"]),
            )
            for name, group in groups.items()
        ),
        empty="Nothing was sent.",
    )
    typer.echo("Times are P50 / P90 / P99 of requests that ended well.")
    for status, detail in report["error_examples"].items():
        typer.echo(f"First {status}: {detail}")


def _percentiles(values: Mapping[str, float] | None) -> str | None:
    if values is None:
        return None
    return " / ".join(_short(values[name]) for name in ("p50", "p90", "p99"))


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"
