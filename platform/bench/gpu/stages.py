"""All stages of the check, in order."""

from collections.abc import Iterator
from functools import partial
from itertools import groupby

from loraplex.platform.bench.gpu.ceilings import ceilings
from loraplex.platform.bench.gpu.exact_attention import exact_attention
from loraplex.platform.bench.gpu.exact_lora import exact_lora
from loraplex.platform.bench.gpu.loads import assist, loads
from loraplex.platform.bench.gpu.records import TOLERANCES, Records
from loraplex.platform.bench.gpu.stage import Setup, Stage
from loraplex.platform.bench.gpu.step_times import attention_times, graphs, lora_times, stack_times

_EXACT_S = 90
"""Most of it goes into compiling, one kernel after the other in each process."""


def _exact_model(setup: Setup) -> Records:
    from loraplex.platform.bench.gpu.llama import exact_model  # noqa: PLC0415  a library that is missing fails it alone

    return exact_model(setup)


def _llama(setup: Setup) -> Records:
    from loraplex.platform.bench.gpu.llama import llama  # noqa: PLC0415  as above

    return llama(setup)


def _routes(setup: Setup) -> Records:
    from loraplex.platform.bench.gpu.routes import routes  # noqa: PLC0415  as above

    return routes(setup)


STAGES = (
    Stage("ceilings", 15, ceilings, is_timed=True),
    *(
        Stage(f"lora {str(dtype).removeprefix('torch.')}", _EXACT_S, partial(exact_lora, dtype))
        for dtype in TOLERANCES
    ),
    *(
        Stage(
            f"attention {str(dtype).removeprefix('torch.')}",
            _EXACT_S,
            partial(exact_attention, dtype),
        )
        for dtype in TOLERANCES
    ),
    Stage("model", _EXACT_S, _exact_model),
    Stage("graphs", 15, graphs, is_timed=True),
    Stage("7B layers", 25, stack_times, is_timed=True),
    Stage("1B Llama", 45, _llama, is_timed=True),
    Stage("lora times", 25, lora_times, is_timed=True),
    Stage("loads", 20, loads, is_timed=True),
    Stage("CPU assist", 10, assist, is_timed=True),
    Stage("attention times", 25, attention_times, is_timed=True),
    Stage("routes", 60, _routes, is_timed=True),
)


def in_turns(stages: tuple[Stage, ...]) -> Iterator[tuple[Stage, ...]]:
    """Those that run together: each that measures is alone."""
    for is_timed, group in groupby(stages, key=lambda stage: stage.is_timed):
        if is_timed:
            yield from ((stage,) for stage in group)
        else:
            yield tuple(group)
