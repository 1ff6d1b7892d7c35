"""The check as one JSON object and one page."""

import re
from collections.abc import Sequence
from dataclasses import asdict

from loraplex.platform.bench.gpu.records import Check, Fact, Ratio, Record, Time
from loraplex.platform.bench.gpu.stage import Outcome
from loraplex.platform.bench.markdown import page

Row = tuple[object, ...]

_TRIAL = (
    "**A trial of the script itself, on a CPU.** Its shapes are tiny, whatever the rows are called "
    "(`7B layers`, `1B Llama`), kernels run by Triton's interpreter, and each time is one run on "
    "the host's clock: times, ratios and numbers mean nothing, and no target is judged. Only the "
    "checks tell something."
)


def is_good(outcomes: Sequence[Outcome]) -> bool:
    """True if every stage came to its end and computed right."""
    return all(not outcome.error and not failed(outcome) for outcome in outcomes)


def failed(outcome: Outcome) -> list[Check]:
    """Checks of a stage that failed."""
    return [r for r in outcome.records if isinstance(r, Check) and not r.ok]


def card(outcomes: Sequence[Outcome]) -> str:
    """Name of the card."""
    names = [r.value for r in _records(outcomes) if isinstance(r, Fact) and r.name == "card"]
    return str(names[0]) if names else "unknown"


def file_name(outcomes: Sequence[Outcome]) -> str:
    """``gpu-nvidia-h200``, say."""
    return "gpu-" + re.sub(r"[^a-z0-9]+", "-", card(outcomes).lower()).strip("-")


def as_json(
    outcomes: Sequence[Outcome], seconds: float, *, is_trial: bool = False
) -> dict[str, object]:
    """Everything, for programs."""
    return {
        "card": card(outcomes),
        "is_trial": is_trial,
        "ok": is_good(outcomes),
        "seconds": round(seconds, 1),
        "stages": [asdict(outcome) for outcome in outcomes],
    }


def line(outcome: Outcome) -> str:
    """One stage in one line."""
    checks = [r for r in outcome.records if isinstance(r, Check)]
    wrong = failed(outcome)
    told = f"{len(checks) - len(wrong)} of {len(checks)} checks hold, " if checks else ""
    state = "FAILED" if outcome.error or wrong else "ok"
    why = f": {outcome.error}" if outcome.error else ""
    for check in wrong:
        why += f"\n    {check.name}: {_wrong(check)}"
    return f"{outcome.name}: {state}, {told}{outcome.seconds:.1f} s{why}"


def as_markdown(outcomes: Sequence[Outcome], seconds: float, *, is_trial: bool = False) -> str:
    """One page with a table for each kind of record.

    A trial on a CPU says at its head that its times mean nothing, and judges no target.
    """
    records = list(_records(outcomes))
    parts = [f"# `make gpu-check` on {card(outcomes)}"]
    if is_trial:
        parts.append(_TRIAL)
    parts.append(_summary(outcomes, seconds, is_trial=is_trial))
    ratios = _tried_ratios(records) if is_trial else _ratios(records)
    tables = {
        "Ratios": (("ratio", "value", "wanted")[: 2 if is_trial else 3], ratios),
        "Checks": (("check", "cases", "worst ÷ tolerated", "holds"), _checks(records)),
        "Times": (("what", "ms", "floor ms", "÷ floor"), _times(records)),
        "Numbers": (("what", "value"), _facts(records)),
        "Stages": (("stage", "seconds", "budget s", "ended by"), _stages(outcomes)),
    }
    return page(parts, ((title, table) for title, table in tables.items() if table[1]))


def _summary(outcomes: Sequence[Outcome], seconds: float, *, is_trial: bool) -> str:
    ended = f"{len(outcomes)} stages in {seconds:.0f} s"
    state = "every check holds" if is_good(outcomes) else "**not all of it holds**"
    if is_trial:
        return f"{ended}; {state}."
    targets = [r for r in _records(outcomes) if isinstance(r, Ratio) and r.target is not None]
    missed = sum(_is_missed(ratio) for ratio in targets)
    return (
        f"{ended}; {state}; of {len(targets)} targets {missed} are missed. Times are medians on "
        "the card's own clock, of graphs where nothing else is said; floors are bytes ÷ the copy "
        "bandwidth or FLOPs ÷ the GEMM rate of the same run."
    )


def _records(outcomes: Sequence[Outcome]) -> list[Record]:
    return [record for outcome in outcomes for record in outcome.records]


def _wrong(check: Check) -> str:
    worst = "" if check.worst is None else f"{check.worst:.2g} times what is tolerated; "
    return worst + check.why


def _ratios(records: Sequence[Record]) -> list[Row]:
    found = [record for record in records if isinstance(record, Ratio)]
    rows: list[Row] = []
    for ratio in found:
        wanted = ""
        if ratio.target is not None:
            wanted = f"≥ {ratio.target:g}" + (" (missed)" if _is_missed(ratio) else "")
        rows.append((ratio.name, f"{ratio.value:.2f}", wanted))
    return rows


def _tried_ratios(records: Sequence[Record]) -> list[Row]:
    return [row[:2] for row in _ratios(records)]


def _is_missed(ratio: Ratio) -> bool:
    return ratio.target is not None and ratio.value < ratio.target


def _checks(records: Sequence[Record]) -> list[Row]:
    return [
        (
            check.name,
            check.num_cases,
            "equal bits" if check.worst is None else f"{check.worst:.3f}",
            "yes" if check.ok else f"**no**: {_wrong(check)}",
        )
        for check in records
        if isinstance(check, Check)
    ]


def _times(records: Sequence[Record]) -> list[Row]:
    return [
        (time.name, f"{time.ms:.4f}", "", "")
        if not time.floor_ms
        else (time.name, f"{time.ms:.4f}", f"{time.floor_ms:.4f}", f"{time.ms / time.floor_ms:.2f}")
        for time in records
        if isinstance(time, Time)
    ]


def _facts(records: Sequence[Record]) -> list[Row]:
    return [
        (fact.name, fact.value if isinstance(fact.value, str) else f"{fact.value:.4g}")
        for fact in records
        if isinstance(fact, Fact)
    ]


def _stages(outcomes: Sequence[Outcome]) -> list[Row]:
    return [(o.name, f"{o.seconds:.1f}", f"{o.budget_s:g}", o.error or "itself") for o in outcomes]
