"""`loraplex bench kernels`: each kernel beside others' ways and beside what the machine can do."""

import os
from collections.abc import Callable, Iterator
from time import perf_counter

import torch

from loraplex.kernels.cpu_kernels import CpuKernels, compile_kernels
from loraplex.platform.bench.floors import FloorProbe
from loraplex.platform.bench.kernels.attention import attention_cases
from loraplex.platform.bench.kernels.case import Absent, Case, Contender, wrong
from loraplex.platform.bench.kernels.dense import dense_cases
from loraplex.platform.bench.kernels.elementwise import elementwise_cases
from loraplex.platform.bench.kernels.lora import lora_cases
from loraplex.platform.bench.kernels.plan import CaseResult, KernelPlan, KernelsResult, Timing
from loraplex.platform.bench.machine import this_machine

_LEAST_TIMES, _MOST_TIMES = 3, 200
_LONG = 4
"""Times that are this multiple of a contender's share end its turns, however few they are."""


@torch.inference_mode()
def measure_kernels(
    plan: KernelPlan, num_threads: int, on_progress: Callable[[str], None]
) -> KernelsResult:
    """Measure everything; the contenders of a case take turns, and floors are taken between.

    A contender is compared with sums in float64 first, and left out if it computes wrong.
    """
    load_average = os.getloadavg()[0]
    torch.set_num_threads(num_threads)
    on_progress("compiling the kernels")
    kernels = compile_kernels(plan.kernels_dir)
    on_progress("measuring the floors")
    probe = FloorProbe((torch.float32, torch.bfloat16))
    floors, ops, results = probe.measure(), set(), []
    for case in _cases(plan, kernels):
        name = f"{case.op}, {_name(case.dtype)}: {case.name}"
        on_progress(name)
        if case.op not in ops:
            floors = floors.better(probe.measure())
            ops.add(case.op)
        results.append(measure_case(case, plan.seconds))
    floors = floors.better(probe.measure())
    machine = this_machine("cpu", ", ".join(map(_name, plan.dtypes)), load_average)
    return KernelsResult(machine, plan, floors, tuple(results))


def measure_case(case: Case, seconds: float) -> CaseResult:
    """Compare each contender with what is expected, then time those that compute it."""
    present, absent, refused = [], [], []
    for contender in case.contenders:
        if isinstance(contender, Absent):
            absent.append(contender)
        elif (why := wrong(case, contender.output())) is not None:
            refused.append(Absent(contender.name, why))
        else:
            present.append(contender)
    return CaseResult(
        op=case.op,
        name=case.name,
        rows=case.rows,
        layers=case.layers,
        dtype=_name(case.dtype),
        work=case.work,
        timings=_timed(present, seconds),
        absent=tuple(absent),
        wrong=tuple(refused),
    )


def _cases(plan: KernelPlan, kernels: CpuKernels | None) -> Iterator[Case]:
    if "lora" in plan.ops:
        yield from lora_cases(plan, kernels)
    if "dense" in plan.ops:
        yield from dense_cases(plan, kernels)
    if "attention" in plan.ops:
        yield from attention_cases(plan, kernels)
    if "elementwise" in plan.ops:
        yield from elementwise_cases(plan, kernels)


def _timed(contenders: list[Contender], seconds: float) -> tuple[Timing, ...]:
    """In turns, so that a slow moment of the machine meets all of them."""
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    running = list(contenders)
    while running:
        for contender in running:
            started = perf_counter()
            contender.run()
            times[contender.name].append(perf_counter() - started)
        running = [c for c in running if _goes_on(times[c.name], seconds)]
    return tuple(
        # The first run allocates, and has oneDNN make code: it counts only where it is the only.
        Timing(name, tuple(taken * 1e3 for taken in (each[1:] or each)))
        for name, each in times.items()
    )


def _goes_on(times: list[float], seconds: float) -> bool:
    taken = sum(times)
    if taken >= _LONG * seconds:
        return False
    return len(times) <= _LEAST_TIMES or (taken < seconds and len(times) < _MOST_TIMES)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
