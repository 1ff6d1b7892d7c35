"""`loraplex bench prefix`."""

import os
from dataclasses import asdict
from typing import Annotated

import typer

from loraplex.platform.cli.context import AsJson, DataDir, failure, load_settings, reporting_errors
from loraplex.platform.cli.output import print_json, print_table, show_progress


def prefix(
    tokens: Annotated[str, typer.Option(help="Lengths of prompts, by commas.")] = "64,256,1024",
    repeats: Annotated[int, typer.Option(min=1, help="Prompts of each length.")] = 7,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts.")] = 0,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Time the first token of prompts that are new and of the same again, and a swap of each."""
    from loraplex.engine.errors import EngineError
    from loraplex.platform.settings import prepare_worker_environment

    sizes = _sizes(tokens)
    load_average = os.getloadavg()[0]
    with reporting_errors():
        settings = load_settings(data_dir, None)
        prepare_worker_environment()
        from loraplex.platform.bench.errors import BenchFailed, BenchRefused
        from loraplex.platform.bench.prefix import prepare_prefix_bench
        from loraplex.platform.demo.base import DemoModelMissing

        try:
            bench = prepare_prefix_bench(settings, max(sizes), seed, load_average)
            rows = list(bench.measure(sizes, repeats, show_progress))
        except (EngineError, BenchRefused, BenchFailed, DemoModelMissing) as error:
            raise failure(str(error)) from None
    typer.echo("", err=True)
    if as_json:
        print_json(asdict(row) | {"machine": str(bench.machine)} for row in rows)
        return
    typer.echo(str(bench.machine))
    print_table(
        ("PROMPT TOKENS", "TTFT COLD MS", "TTFT WARM MS", "COLD/WARM", "SWAP MS"),
        ((r.prompt_tokens, r.cold_ttft_ms, r.warm_ttft_ms, r.ratio, r.swap_ms) for r in rows),
        empty="Nothing was measured.",
    )


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) if part.strip().isdecimal() else 0 for part in text.split(","))
    if not all(sizes):
        raise failure(f"--tokens is {text!r}; it must be numbers from 1, by commas")
    return sizes
