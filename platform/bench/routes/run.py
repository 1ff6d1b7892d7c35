"""`loraplex bench routes`: what a request pays whose adapter is not on the device, by its route."""

import os
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from loraplex.platform.bench.errors import BenchRefused
from loraplex.platform.bench.machine import describe_machine
from loraplex.platform.bench.routes.cold_engine import ColdEngine, Times
from loraplex.platform.bench.routes.contenders import Contenders
from loraplex.platform.bench.routes.plan import (
    RESIDENT,
    ROUTES,
    RatioSamples,
    RoutesPlan,
    RoutesResult,
    Samples,
)
from loraplex.platform.bench.routes.throughput import measure_scale
from loraplex.platform.settings import Settings

_PREFILLS = 5
"""Of which the median tells how fast a copy has to be."""
_LEAD = 1.25
"""Times of a copy by which a hint comes before its request."""
_PREFILLS_BESIDE = 2.0
"""For which gaps are measured from the arrival of a request on, beside its copy."""
_MIN_BYTES_PER_S = 1_000_000
"""What a copy can be throttled to at least."""
Show = Callable[[str], None]


def measure_routes(settings: Settings, plan: RoutesPlan, show: Show) -> RoutesResult:
    """Measure all routes in turns, at each ratio.

    Raises:
        BenchRefused: this cannot be measured here.
        BenchFailed: a request failed, or was not what was to be measured.
    """
    load_average = os.getloadavg()[0]
    torch.set_num_threads(settings.threads or 1)
    show("loading the model, and learning how long its steps take")
    with (
        TemporaryDirectory(prefix="loraplex-bench-") as name,
        Contenders.prepared(settings, plan, Path(name)) as contenders,
    ):
        with contenders.engine(RESIDENT, None) as resident:
            resident.warm_up()
            rows = tuple(_at_ratio(contenders, resident, ratio, show) for ratio in plan.ratios)
        scale = measure_scale(contenders, Path(name) / "scale", show)
        return RoutesResult(
            machine=describe_machine(contenders.subject.model, load_average),
            plan=plan,
            model=contenders.subject.model.config.name,
            adapter_bytes=contenders.adapter_bytes,
            ratios=rows,
            scale=scale,
        )


def throttle(adapter_bytes: int, prefill_ms: float, ratio: float) -> int:
    """Bytes a second at which a copy takes so many times what a prompt takes.

    Raises BenchRefused if a copy cannot be throttled so far.
    """
    bytes_per_s = adapter_bytes / (ratio * prefill_ms / 1e3)
    if bytes_per_s < _MIN_BYTES_PER_S:
        raise BenchRefused(
            f"an adapter of {adapter_bytes} bytes would have to be copied in {ratio:g} times "
            f"{prefill_ms:.0f} ms, and no copy is throttled below {_MIN_BYTES_PER_S} bytes a "
            "second; ask for a larger --rank or shorter --prompt-tokens"
        )
    return int(bytes_per_s)


def _at_ratio(
    contenders: Contenders, resident: ColdEngine, ratio: float, show: Show
) -> RatioSamples:
    plan = contenders.plan
    show(f"load ÷ prefill {ratio:g}: timing prompts")
    # For each ratio anew: a machine that others use is not always as fast.
    prefill_ms = statistics.median(resident.alone(number)[0] for number in range(_PREFILLS))
    bytes_per_s = throttle(contenders.adapter_bytes, prefill_ms, ratio)
    copy_s, prefill_s = ratio * prefill_ms / 1e3, prefill_ms / 1e3
    arrival_s = _LEAD * copy_s
    times = Times(arrival_s, arrival_s + copy_s + _PREFILLS_BESIDE * prefill_s)
    samples = {route: Samples() for route in ROUTES}
    with ExitStack() as stack:
        engines = {RESIDENT: resident}
        for route in ROUTES[1:]:
            show(f"load ÷ prefill {ratio:g}, warming up: {route}")
            engine = stack.enter_context(contenders.engine(route, bytes_per_s))
            engines[route] = engine
            samples[route].num_warm_up = engine.warm_up()
        for number in range(plan.rounds):
            for route in ROUTES[:: -1 if number % 2 else 1]:
                show(f"load ÷ prefill {ratio:g}, round {number + 1} of {plan.rounds}: {route}")
                _measure(engines[route], samples[route], number, plan.num_beside, times)
    return RatioSamples(ratio, prefill_ms, bytes_per_s, samples)


def _measure(
    engine: ColdEngine, samples: Samples, number: int, num_beside: int, times: Times
) -> None:
    before = engine.taken
    ttft_ms, token_id = engine.alone(number)
    samples.ttft_ms.append(ttft_ms)
    samples.token_ids.append(token_id)
    for way in engine.ways_since(before):
        samples.taken[way] = samples.taken.get(way, 0) + 1
    if num_beside:
        samples.beside.append(engine.beside(number, num_beside, times))
