"""What a run of load amounts to: percentiles, rates, goodput, errors, and the client's own lag."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from loraplex.platform.load.outcome import OK, Outcome

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must keep to count as good; None asks nothing."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def is_kept(self, outcome: Outcome) -> bool:
        """Whether the request ended well and in time; an answer of one token has no TPOT."""
        return (
            outcome.status == OK
            and _within(outcome.ttft_ms, self.ttft_ms)
            and _within(outcome.tpot_ms, self.tpot_ms)
        )


def summarise(outcomes: Sequence[Outcome], slo: Slo, duration_s: float) -> dict[str, object]:
    """Sum up a group of requests; `duration_s` is that of the whole run.

    Latencies are those of requests that ended well; counts and goodput are over all that were due.
    """
    ended = [outcome for outcome in outcomes if outcome.status == OK]
    errors = Counter(outcome.status for outcome in outcomes if outcome.status != OK)
    num_good = sum(map(slo.is_kept, outcomes))
    output_tokens = sum(outcome.completion_tokens for outcome in outcomes)
    prompt_tokens = sum(outcome.prompt_tokens for outcome in outcomes)
    return {
        "requests": len(outcomes),
        "ok": len(ended),
        "errors": dict(sorted(errors.items())),
        "ttft_ms": percentiles(outcome.ttft_ms for outcome in ended),
        "tpot_ms": percentiles(outcome.tpot_ms for outcome in ended),
        "e2e_ms": percentiles(outcome.e2e_ms for outcome in ended),
        "completed_per_s": len(ended) / duration_s,
        "goodput_per_s": num_good / duration_s,
        "good_share": num_good / len(outcomes) if outcomes else 0.0,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "output_tokens_per_s": output_tokens / duration_s,
    }


def summarise_run(outcomes: Sequence[Outcome], slo: Slo) -> dict[str, object]:
    """Sum up a whole run: `all`, `models` by name, the rates that were asked and kept, the lag."""
    ends = [outcome.end_s for outcome in outcomes if outcome.end_s is not None]
    last_s = max(outcome.scheduled_s for outcome in outcomes)
    duration_s = max([last_s, *ends]) or 1e-9
    sent = [outcome.sent_s for outcome in outcomes if outcome.sent_s is not None]
    models = {outcome.model: [] for outcome in outcomes}  # type: dict[str, list[Outcome]]
    for outcome in outcomes:
        models[outcome.model].append(outcome)
    return {
        "duration_s": duration_s,
        "asked_per_s": len(outcomes) / last_s if last_s else None,
        "sent_per_s": len(sent) / max(sent) if sent and max(sent) > 0 else None,
        "error_examples": {o.status: o.detail for o in reversed(outcomes) if o.detail},
        "lag_ms": percentiles(outcome.lag_ms for outcome in outcomes),
        "all": summarise(outcomes, slo, duration_s),
        "models": {model: summarise(group, slo, duration_s) for model, group in models.items()},
    }


def percentiles(values: Iterable[float | None]) -> dict[str, float] | None:
    """P50, P90, P99 and the largest, linear between neighbours; None where there is no value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    found = np.percentile(known, PERCENTILES).tolist()
    return {f"p{p}": value for p, value in zip(PERCENTILES, found, strict=True)} | {
        "max": max(known)
    }


def _within(value: float | None, limit: float | None) -> bool:
    return limit is None or value is None or value <= limit
