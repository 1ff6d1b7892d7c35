"""Throughput where thousands of adapters are registered, beside that with 5."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from loraplex.platform.bench.routes.contenders import Contenders
from loraplex.platform.bench.routes.plan import ScaleSamples
from loraplex.platform.bench.scale import FEW, Scale, scale_series

_ZIPF = 0.9
"""Exponent of the popularity of the many."""


def measure_scale(
    contenders: Contenders, folder: Path, show: Callable[[str], None]
) -> ScaleSamples | None:
    """Output tokens a second with many registered adapters, drawn by their popularity, and with 5
    by turns, round by round; None where the plan leaves this out. Routes are chosen, and copies as
    fast as memory is."""
    plan, subject = contenders.plan, contenders.subject
    if not plan.num_registered:
        return None
    settings = subject.settings.model_copy(
        update={"adapter_route": "choose", "assist_processes": 0}
    )
    scale = Scale.prepare(
        replace(subject, settings=settings),
        folder,
        plan.num_registered,
        contenders.prompts,
        show,
        zipf=_ZIPF,
    )
    rates: dict[int, list[float]] = {FEW: [], plan.num_registered: []}
    with closing(scale.parts.transfers):
        probes = dict(zip(rates, scale.probes(perf_counter), strict=True))
        for number in range(plan.rounds):
            for num_registered in list(rates)[:: -1 if number % 2 else 1]:
                name, probe = probes[num_registered]
                show(f"round {number + 1} of {plan.rounds}: {name}")
                rates[num_registered].append(probe(number)[scale_series(num_registered)])
    return ScaleSamples(scale.facts, tuple(rates[plan.num_registered]), tuple(rates[FEW]))
