"""`loraplex bench engine`: what the whole engine does, beside PEFT, in one interleaved run."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from loraplex.engine.memory import PoolSizes
from loraplex.engine.model import LoadedModel, load_model
from loraplex.kernels.lora_cpu import CpuLora, compile_lora
from loraplex.platform.bench.adapters import write_adapters
from loraplex.platform.bench.contenders import Contenders, Watched
from loraplex.platform.bench.errors import BenchRefused
from loraplex.platform.bench.machine import Machine, describe_machine
from loraplex.platform.bench.peft_peer import require_peft, running_peft
from loraplex.platform.bench.phases import StopWatch, attach, timed
from loraplex.platform.bench.random_model import LlamaShape, write_random_llama
from loraplex.platform.bench.series import EnginePlan, ProfileRow, Series
from loraplex.platform.bench.subject import Subject, pool_sizes, without_lora
from loraplex.platform.settings import Settings, available_cores
from loraplex.platform.worker import model_config

RANDOM_MODEL = "random"


@dataclass(frozen=True, slots=True)
class EngineResult:
    """All that was measured in one run."""

    machine: Machine
    plan: EnginePlan
    model: str
    adapter_ranks: tuple[int, ...]
    peft: str | None
    """Version of PEFT and transformers; None where it was left out."""
    values: dict[Series, list[float]]
    """By repetition."""
    profile: tuple[ProfileRow, ...]
    tokens_equal_to_peft: float | None
    """Share of greedy tokens in `distinct` that are PEFT's too: that both did the same work."""


def measure_engine(
    settings: Settings, plan: EnginePlan, on_progress: Callable[[str], None]
) -> EngineResult:
    """Measure everything, each repetition going through all cases, every second one backwards.

    Raises:
        BenchRefused: this cannot be measured here.
        BenchFailed: a request or the peer failed.
    """
    if plan.with_peft:
        require_peft()
    load_average = os.getloadavg()[0]
    torch.set_num_threads(settings.threads or max(1, available_cores() - 1))
    with (
        TemporaryDirectory(prefix="loraplex-bench-") as folder,
        _prepared(settings, plan, Path(folder), on_progress) as bench,
    ):
        probes = bench.probes()
        values: dict[Series, list[float]] = {series: [] for series in probes}
        for repeat in range(plan.repeats):
            for series in list(probes)[:: -1 if repeat % 2 else 1]:
                values[series].append(probes[series](repeat))
                on_progress(f"repetition {repeat + 1} of {plan.repeats}: {series}")
        return EngineResult(
            machine=describe_machine(bench.model, load_average),
            plan=plan,
            model=bench.model.config.name,
            adapter_ranks=tuple(adapter.rank for adapter in bench.adapters),
            peft=None if bench.peer is None else str(bench.peer.started),
            values=values,
            profile=bench.profile(values),
            tokens_equal_to_peft=bench.tokens_equal(),
        )


@contextmanager
def _prepared(
    settings: Settings, plan: EnginePlan, folder: Path, on_progress: Callable[[str], None]
) -> Iterator[Contenders]:
    on_progress("loading the model")
    model = _load(settings, plan, folder)
    adapters = []
    for adapter in write_adapters(model, folder, plan.seed):
        adapters.append(adapter)
        on_progress(f"wrote {len(adapters)} adapters")
    sizes = pool_sizes(
        adapters,
        max(plan.batch_sizes),
        plan.prompt_tokens + plan.new_tokens,
        settings.block_size,
    )
    # All prompts of a batch go into one step, as in the peer, so that all requests decode
    # together from the second step on.
    update = {
        "data_dir": folder,
        "max_running": max(plan.batch_sizes),
        "max_step_tokens": max(plan.batch_sizes) * plan.prompt_tokens,
        "max_waiting_tokens": max(plan.batch_sizes) * plan.prompt_tokens,
        # Cases have prompts in common, and the peer computes all of each.
        "prefix_cache": False,
    }
    roomy = settings.model_copy(update=update)
    # Compiled where the worker keeps it, not in the folder that is thrown away.
    cpu_lora = compile_lora(settings.kernels_dir) if model.device.type == "cpu" else None
    with ExitStack() as stack:
        peer = None
        if plan.with_peft:
            on_progress("loading the adapters into PEFT")
            peer = stack.enter_context(running_peft(model, adapters))
        contenders = Contenders(
            plan=plan,
            model=model,
            adapters=tuple(adapters),
            lora_off=Subject.of(without_lora(model), sizes, roomy, cpu_lora).new_engine(),
            watched=_watched(model, sizes, roomy, cpu_lora) if plan.with_profile else None,
            subject=Subject.of(model, sizes, roomy, cpu_lora),
            peer=peer,
        )
        stack.callback(contenders.close)
        on_progress("warming up")
        contenders.warm_up()
        yield contenders


def _watched(
    model: LoadedModel, sizes: PoolSizes, settings: Settings, cpu_lora: CpuLora | None
) -> Watched:
    watch = StopWatch()
    subject = Subject.of(timed(model, watch), sizes, settings, cpu_lora)
    attach(subject.model, watch)
    return Watched(subject.new_engine(), watch)


def _load(settings: Settings, plan: EnginePlan, folder: Path) -> LoadedModel:
    if settings.model == RANDOM_MODEL:
        path = folder / RANDOM_MODEL
        write_random_llama(path, LlamaShape(), plan.seed)
        settings = settings.model_copy(update={"model": str(path)})
    model = load_model(model_config(settings))
    num_tokens = plan.prompt_tokens + plan.new_tokens
    if num_tokens > model.max_model_len:
        raise BenchRefused(
            f"--prompt-tokens and --new-tokens are {num_tokens} together; {model.config.name} "
            f"holds at most {model.max_model_len}"
        )
    return model
