"""A run of `loraplex bench routes` as JSON, as tables and as part of a page."""

from collections.abc import Sequence
from dataclasses import asdict

from loraplex.engine.memory import MIB
from loraplex.platform.bench.markdown import Table, page
from loraplex.platform.bench.routes.plan import RoutesResult
from loraplex.platform.bench.routes.ratios import (
    Row,
    Spread,
    bandwidth_gbps,
    choice_regret,
    fastest_forced,
    regret,
    rows,
    scale_over_few,
    worst_chosen_over_wait,
)
from loraplex.platform.bench.scale import FEW

_MANY = 2000
"""Registered adapters of the ratio that is named after them."""
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
_PICTURE = "![Time to the first token by route](routes.png)"


def as_json(result: RoutesResult) -> dict[str, object]:
    """Everything, for programs; what was left out is null."""
    scale = result.scale
    return {
        "machine": asdict(result.machine),
        "run": asdict(result.plan) | {"model": result.model},
        "is_emulated": True,
        "bandwidth_gbps": bandwidth_gbps(result),
        "adapter_bytes": result.adapter_bytes,
        "prefill_ms": result.prefill_ms,
        "rows": [asdict(row) for row in rows(result)],
        "choice_regret": choice_regret(result),
        "regrets": [{"load_over_prefill": at.ratio, "regret": regret(at)} for at in result.ratios],
        "worst_chosen_over_wait": worst_chosen_over_wait(result),
        "scale_2000_over_5": scale_over_few(result)
        if result.plan.num_registered == _MANY
        else None,
        "scale": None if scale is None else asdict(scale) | {"over_5": scale_over_few(result)},
    }


def summary(result: RoutesResult) -> str:
    """What was run on what, in one paragraph."""
    plan = result.plan
    quick = "**A quick run, to try the command: its times mean little.** " if plan.is_quick else ""
    return (
        f"{quick}{result.machine}. {result.model}, adapters of rank {plan.rank} on all linear "
        f"layers but the head, {result.adapter_bytes / MIB:.1f} MiB each; prompts of "
        f"{plan.prompt_tokens} tokens, {result.prefill_ms:.0f} ms on an adapter that is there; "
        f"processes that help: {plan.num_assistants}; rounds: {plan.rounds}; seed {plan.seed}. The "
        "link is emulated: the worker's own memory stands for the device's, and its copies are "
        "throttled."
    )


def tables(result: RoutesResult) -> list[tuple[str, Table]]:
    """All tables with their titles, in order."""
    found = rows(result)
    shown: list[tuple[str, Table]] = [
        ("First token, ÷ that on an adapter that is there", _ttft_table(found)),
        ("The choice", _choice_table(result)),
    ]
    if any(row.tpot_ms is not None for row in found):
        title = f"Tokens of {result.plan.num_beside} requests that decode beside one that comes"
        shown.append((title, _tpot_table(found)))
    shown.append(("How requests came to run", _taken_table(found)))
    if result.scale is not None:
        shown.append(("Registered adapters", _scale_table(result)))
    return shown


def measured(result: RoutesResult) -> str:
    """The part of the page that a run writes, markers included."""
    text = page([BEGIN, summary(result), _PICTURE], tables(result)).replace("\n## ", "\n### ")
    return f"{text}\n{END}"


def with_measured(text: str, result: RoutesResult) -> str:
    """The page with this run in place of the one before, or a new page where there is none."""
    if BEGIN not in text or END not in text:
        return f"# `loraplex bench routes`\n\n{measured(result)}\n"
    before, _, rest = text.partition(BEGIN)
    return before + measured(result) + rest.partition(END)[2]


def _ttft_table(found: Sequence[Row]) -> Table:
    header = (
        *("load ÷ prefill, as set", "as measured", "GB/s", "route", "ms", "÷ resident"),
        "beside decodes, ÷ resident",
    )
    return header, [
        (
            f"{row.load_over_prefill:g}",
            _number(row.measured_load_over_prefill),
            _number(row.bandwidth_gbps),
            row.route,
            _spread(row.ttft_ms),
            _number(row.ttft_over_resident),
            _number(row.beside_ttft_over_resident),
        )
        for row in found
    ]


def _choice_table(result: RoutesResult) -> Table:
    of_each = [
        (f"load ÷ prefill {at.ratio:g}: chosen ÷ {fastest_forced(at)} − 1", f"{regret(at):+.1%}")
        for at in result.ratios
    ]
    return ("what", "value"), [
        *of_each,
        ("`choice_regret`, their mean", f"{choice_regret(result):+.1%}"),
        ("most that a choice took ÷ waiting", _number(worst_chosen_over_wait(result))),
    ]


def _tpot_table(found: Sequence[Row]) -> Table:
    header = ("load ÷ prefill", "route", "mean gap, ms", "÷ resident", "P99 ÷ resident")
    return header, [
        (
            f"{row.load_over_prefill:g}",
            row.route,
            _spread(row.tpot_ms),
            _number(row.tpot_over_resident),
            _number(row.tpot_p99_over_resident),
        )
        for row in found
    ]


def _taken_table(found: Sequence[Row]) -> Table:
    header = ("load ÷ prefill", "route", "came to run by", "first tokens equal", "warm-up requests")
    return header, [
        (
            f"{row.load_over_prefill:g}",
            row.route,
            ", ".join(f"{way}: {count}" for way, count in sorted(row.taken.items())) or "–",
            f"{row.tokens_equal:.0%}",
            row.num_warm_up,
        )
        for row in found
    ]


def _scale_table(result: RoutesResult) -> Table:
    scale = result.scale
    assert scale is not None
    facts = scale.facts
    by_law = f"drawn by Zipf's law ({facts.zipf:g}) of {facts.num_registered}"
    return ("adapters", "output tokens/s, loads included"), [
        (f"{FEW}, by turns", _spread(Spread.of(scale.few))),
        (by_law, _spread(Spread.of(scale.many))),
        (
            f"the second ÷ the first; {facts.num_loads} loads for {facts.num_requests} requests",
            _number(scale_over_few(result)),
        ),
    ]


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    return f"{_number(spread.median)} ({_number(spread.least)}, {_number(spread.most)})"


def _number(value: float | None) -> str:
    """Three digits, and never an exponent."""
    if value is None:
        return "–"
    digits = 4 if value < 0.1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}"
