"""`loraplex bench engine`: what the whole engine does, beside its peers, in one interleaved run."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from loraplex.engine.memory import PoolSizes
from loraplex.engine.model import LoadedModel
from loraplex.platform.base import load_base
from loraplex.platform.bench.adapters import BenchAdapter, write_adapters
from loraplex.platform.bench.bare import without_lora
from loraplex.platform.bench.contenders import Contenders, Watched
from loraplex.platform.bench.decode import Ask, ask_all
from loraplex.platform.bench.errors import BenchRefused
from loraplex.platform.bench.floors import Work
from loraplex.platform.bench.machine import Machine, describe_machine
from loraplex.platform.bench.mixes import (
    LONG_NEW_TOKENS,
    LONG_TOKENS,
    NUM_REQUESTS,
    StepProbes,
    write_more,
)
from loraplex.platform.bench.peer import PeerChoice, running_peer
from loraplex.platform.bench.phases import StopWatch, attach, timed
from loraplex.platform.bench.prompts import Prompts
from loraplex.platform.bench.random_model import LlamaShape, write_random_llama
from loraplex.platform.bench.scale import MAX_TOKENS as SCALE_TOKENS
from loraplex.platform.bench.scale import Scale, ScaleFacts
from loraplex.platform.bench.series import EnginePlan, Probe, ProfileRow, Series
from loraplex.platform.bench.step_floors import adapters_work, base_work, machine_probes
from loraplex.platform.bench.subject import Subject, pool_sizes
from loraplex.platform.settings import Settings, available_cores

RANDOM_MODEL = "random"
Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EngineResult:
    """All that was measured in one run."""

    machine: Machine
    plan: EnginePlan
    model: str
    adapter_ranks: tuple[int, ...]
    values: dict[Series, list[float]]
    """By repetition; a slow peer's end before the others'."""
    profile: tuple[ProfileRow, ...] = ()
    peers: dict[str, str] = field(default_factory=dict)
    """Versions."""
    tokens_equal: dict[str, float | None] = field(default_factory=dict)
    """By peer, the share of greedy tokens in `distinct` that are ours too: that both did the same
    work."""
    base_work: Work | None = None
    """Of a step of 16 requests, where the machine's limits were measured."""
    lora_work: Work | None = None
    """Of 16 requests' adapters."""
    scale: ScaleFacts | None = None


@dataclass(slots=True)
class _Bench:
    """All that is prepared for a run."""

    contenders: Contenders
    probes: list[tuple[str, Probe]]
    scale: Scale | None


def measure_engine(
    settings: Settings, plan: EnginePlan, choices: Sequence[PeerChoice], on_progress: Show
) -> EngineResult:
    """Measure everything, each repetition going through all cases, every second one backwards.

    Raises:
        BenchRefused: this cannot be measured here.
        BenchFailed: a request or a peer failed.
    """
    for choice in choices:
        choice.require()
    load_average = os.getloadavg()[0]
    torch.set_num_threads(settings.threads or max(1, available_cores() - 1))
    if plan.by_processor_time and torch.get_num_threads() > 1:
        raise BenchRefused(
            f"--processor-time adds up all threads, and there are {torch.get_num_threads()}: "
            "add --threads 1"
        )
    with (
        TemporaryDirectory(prefix="loraplex-bench-") as folder,
        _prepared(settings, plan, choices, Path(folder), on_progress) as bench,
    ):
        values: dict[Series, list[float]] = {}
        for repeat in range(plan.repeats):
            in_turn = bench.probes[:: -1 if repeat % 2 else 1]
            for number, (name, probe) in enumerate(in_turn, 1):
                turn = f"repetition {repeat + 1} of {plan.repeats}, case {number} of {len(in_turn)}"
                on_progress(f"{turn}: {name}")
                for series, value in probe(repeat).items():
                    values.setdefault(series, []).append(value)
        return _result(bench, describe_machine(bench.contenders.model, load_average), values)


def _result(bench: _Bench, machine: Machine, values: dict[Series, list[float]]) -> EngineResult:
    contenders, plan = bench.contenders, bench.contenders.plan
    model, adapters = contenders.model, contenders.adapters
    return EngineResult(
        machine=machine,
        plan=plan,
        model=model.config.name,
        adapter_ranks=tuple(adapter.rank for adapter in adapters),
        values=values,
        profile=contenders.profile(values),
        peers={peer.name: peer.versions for peer in contenders.peers},
        tokens_equal={peer.name: contenders.agreement.of(peer.name) for peer in contenders.peers},
        base_work=base_work(model, NUM_REQUESTS) if plan.with_floors else None,
        lora_work=adapters_work(model, adapters) if plan.with_floors else None,
        scale=None if bench.scale is None else bench.scale.facts,
    )


@contextmanager
def _prepared(
    settings: Settings,
    plan: EnginePlan,
    choices: Sequence[PeerChoice],
    folder: Path,
    on_progress: Show,
) -> Iterator[_Bench]:
    on_progress("loading the model")
    model = _load(settings, plan, folder)
    adapters, others = _write_adapters(model, plan, folder, on_progress)
    prompts = Prompts.of(model, plan.seed)
    sizes, roomy = _room(settings, plan, model, [*adapters, *others], folder)
    with ExitStack() as stack:
        peers = []
        for choice in choices:
            on_progress(f"loading the adapters into {choice.name}")
            peer = running_peer(choice, model, adapters, plan)
            peers.append(stack.enter_context(peer))
        contenders = Contenders(
            plan=plan,
            model=model,
            adapters=tuple(adapters),
            lora_off=Subject.of(without_lora(model), sizes, roomy).new_engine(),
            watched=_watched(model, sizes, roomy) if plan.with_profile else None,
            subject=Subject.of(model, sizes, roomy),
            peers=peers,
            prompts=prompts,
        )
        stack.callback(contenders.close)
        scale = None
        if plan.with_scale:
            where = folder / "scale"
            scale = Scale.prepare(
                contenders.subject, where, plan.num_registered, prompts, on_progress
            )
            stack.callback(scale.parts.transfers.close)
        contenders.warm_up(on_progress)
        if others:
            # One that is still being read would decode later than those beside it.
            ask_all(contenders.lora_on, [Ask(other.digest, (1,)) for other in others], 1)
        yield _Bench(contenders, _probes(contenders, others, scale), scale)


def _probes(
    contenders: Contenders, others: Sequence[BenchAdapter], scale: Scale | None
) -> list[tuple[str, Probe]]:
    plan, model = contenders.plan, contenders.model
    probes = contenders.probes()
    steps = StepProbes(contenders.lora_on, contenders.prompts, model.max_model_len, plan.clock)
    if plan.with_floors:
        probes += machine_probes(model, NUM_REQUESTS, plan.clock) + steps.long(contenders.adapters)
    if plan.with_ranks:
        probes += steps.by_ranks([*contenders.adapters, *others])
    if scale is not None:
        probes += scale.probes(plan.clock)
    return probes


def _write_adapters(
    model: LoadedModel, plan: EnginePlan, folder: Path, on_progress: Show
) -> tuple[list[BenchAdapter], list[BenchAdapter]]:
    """Those that all contenders have, and those that only the mixes of ranks need."""
    adapters: list[BenchAdapter] = []
    for adapter in write_adapters(model, folder, plan.seed):
        adapters.append(adapter)
        on_progress(f"wrote {len(adapters)} adapters")
    others = list(write_more(model, folder, plan.seed, adapters)) if plan.with_ranks else []
    return adapters, others


def _room(
    settings: Settings,
    plan: EnginePlan,
    model: LoadedModel,
    adapters: Sequence[BenchAdapter],
    folder: Path,
) -> tuple[PoolSizes, Settings]:
    """Room for all that is asked at once."""
    num_requests, prompt_tokens = max(plan.batch_sizes), plan.prompt_tokens
    request_tokens = prompt_tokens + plan.new_tokens
    if plan.with_floors or plan.with_ranks or plan.with_scale:
        num_requests = max(num_requests, NUM_REQUESTS)
        request_tokens = max(request_tokens, SCALE_TOKENS)
    if plan.with_floors:
        prompt_tokens = max(prompt_tokens, LONG_TOKENS)
        request_tokens = max(request_tokens, LONG_TOKENS + LONG_NEW_TOKENS)
    request_tokens = min(request_tokens, model.max_model_len)
    # The scheduler begins no request with the last free blocks: all are to run together.
    roomy_for = num_requests + num_requests // 4 + 1
    sizes = pool_sizes(adapters, roomy_for, request_tokens, settings.block_size)
    # All prompts of a batch go into one step, as in the peers, so that all requests decode
    # together from the second step on.
    update = {
        "data_dir": folder,
        "max_running": num_requests,
        "max_step_tokens": num_requests * prompt_tokens,
        "max_waiting_tokens": num_requests * prompt_tokens,
        # Cases have prompts in common, and the peers compute all of each.
        "prefix_cache": False,
    }
    return sizes, settings.model_copy(update=update)


def _watched(model: LoadedModel, sizes: PoolSizes, settings: Settings) -> Watched:
    watch = StopWatch()
    subject = Subject.of(timed(model, watch), sizes, settings)
    attach(subject.model, watch)
    return Watched(subject.new_engine(), watch)


def _load(settings: Settings, plan: EnginePlan, folder: Path) -> LoadedModel:
    if settings.model == RANDOM_MODEL:
        path = folder / RANDOM_MODEL
        write_random_llama(path, LlamaShape(), plan.seed)
        settings = settings.model_copy(update={"model": str(path)})
    model = load_base(settings)
    num_tokens = plan.prompt_tokens + plan.new_tokens
    if num_tokens > model.max_model_len:
        raise BenchRefused(
            f"--prompt-tokens and --new-tokens are {num_tokens} together; {model.config.name} "
            f"holds at most {model.max_model_len}"
        )
    return model
