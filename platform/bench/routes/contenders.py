"""A model, a few adapters, and engines that bring them to the device each in its own way."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Literal

from loraplex.engine.calibration import Calibration
from loraplex.engine.cost import CostModel
from loraplex.engine.memory import PoolSizes
from loraplex.engine.model import LoadedModel
from loraplex.engine.synthetic_adapters import synthetic_adapters
from loraplex.platform.base import load_base
from loraplex.platform.bench.adapters import BenchAdapter, write_adapters
from loraplex.platform.bench.errors import BenchRefused
from loraplex.platform.bench.prompts import Prompts
from loraplex.platform.bench.random_model import LlamaShape, write_random_llama
from loraplex.platform.bench.routes.cold_engine import (
    BESIDE_PROMPT_TOKENS,
    BESIDE_TOKENS,
    ColdEngine,
)
from loraplex.platform.bench.routes.plan import HINTED, RESIDENT, RouteName, RoutesPlan
from loraplex.platform.bench.subject import Subject
from loraplex.platform.settings import Settings
from loraplex.platform.worker import scheduler_config
from loraplex.platform.worker_assist import start_assist
from loraplex.platform.worker_costs import subject_of

RANDOM_MODEL, SMALL_MODEL = "random", "small"
"""Models of random weights: of the demo's shape, and one for trying."""
_SHAPES: Mapping[str, LlamaShape] = MappingProxyType(
    {
        RANDOM_MODEL: LlamaShape(),
        SMALL_MODEL: LlamaShape(
            hidden_size=256,
            num_layers=8,
            num_heads=4,
            num_kv_heads=2,
            intermediate_size=512,
            vocab_size=1024,
            max_position_embeddings=2048,
        ),
    }
)
_LEAST_COLD, _MOST_COLD = 4, 16
"""Adapters that push each other off the device: two for each round, as far as that."""
_ROOM, _ROOM_FOR_HINTS = 2.5, 4.5
"""Adapters that the device has room for: the pinned one and one more, and no third; hints may have
a quarter of it."""
_KV_SPARE = 1.25
"""The scheduler begins no request with the last free blocks."""

EngineRoute = Literal["choose", "wait", "layer-wise", "assist"]
_MODES: Mapping[RouteName, EngineRoute] = MappingProxyType(
    {
        RESIDENT: "wait",
        "wait": "wait",
        "layer-wise": "layer-wise",
        "assist": "assist",
        "chosen": "choose",
        HINTED: "wait",
    }
)


@dataclass(frozen=True, slots=True)
class Contenders:
    """What engines are made of; one after the other is in use."""

    plan: RoutesPlan
    subject: Subject
    pinned: BenchAdapter
    cold: tuple[BenchAdapter, ...]
    prompts: Prompts
    learned: bytes
    """The cost model with which each engine begins."""

    @classmethod
    @contextmanager
    def prepared(cls, settings: Settings, plan: RoutesPlan, folder: Path) -> Iterator["Contenders"]:
        """Load the model, start the processes that help, write adapters and learn how long steps
        take.

        Raises BenchRefused where the model does not hold such requests, TooFewCores.
        """
        if settings.model in _SHAPES:
            path = folder / settings.model
            write_random_llama(path, _SHAPES[settings.model], plan.seed)
            settings = settings.model_copy(update={"model": str(path)})
        model = load_base(settings)
        _require_room(model, plan)
        num_cold = min(max(_LEAST_COLD, 2 * plan.rounds), _MOST_COLD)
        pinned, *cold = write_adapters(model, folder, plan.seed, 1 + num_cold, (plan.rank,))
        settings = _settings(settings, folder, plan)
        assist = start_assist(settings, model)
        try:
            subject = Subject.of(model, _sizes(model, settings, plan), settings, assist)
            prompts = Prompts.of(model, plan.seed)
            learned = _learned(subject, plan.calibration_s)
            yield cls(plan, subject, pinned, tuple(cold), prompts, learned)
        finally:
            if assist is not None:
                assist.close()

    @property
    def adapter_bytes(self) -> int:
        """Of each, on the device."""
        return self.pinned.num_bytes

    @contextmanager
    def engine(self, route: RouteName, copy_bytes_per_s: int | None) -> Iterator[ColdEngine]:
        """An engine that goes one way, whose copies are no faster than told."""
        room = {RESIDENT: len(self.cold) + 2, HINTED: _ROOM_FOR_HINTS}.get(route, _ROOM)
        sizes = replace(
            self.subject.sizes,
            adapter_bytes=int(room * self.adapter_bytes),
            host_adapter_bytes=(len(self.cold) + 2) * self.adapter_bytes,
        )
        update = {
            "adapter_route": _MODES[route],
            "adapter_copy_bytes_per_s": copy_bytes_per_s,
            "assist_processes": self.plan.num_assistants if route in {"assist", "chosen"} else 0,
        }
        settings = self.subject.settings.model_copy(update=update)
        subject = replace(self.subject, sizes=sizes, settings=settings)
        engine = ColdEngine(
            route=route,
            parts=subject.new_engine(CostModel.from_json(self.learned)),
            pinned=self.pinned,
            cold=self.cold,
            prompts=self.prompts,
            prompt_tokens=self.plan.prompt_tokens,
            most_tokens=sizes.max_model_len - BESIDE_PROMPT_TOKENS,
        )
        try:
            yield engine
        finally:
            engine.close()


def _require_room(model: LoadedModel, plan: RoutesPlan) -> None:
    if plan.prompt_tokens + 1 > model.max_model_len:
        raise BenchRefused(
            f"--prompt-tokens is {plan.prompt_tokens}, and one is drawn; {model.config.name} holds "
            f"at most {model.max_model_len}"
        )


def _sizes(model: LoadedModel, settings: Settings, plan: RoutesPlan) -> PoolSizes:
    most = max(plan.prompt_tokens + 1, BESIDE_PROMPT_TOKENS + BESIDE_TOKENS)
    longest = min(model.max_model_len, most)
    blocks_each = -(-longest // settings.block_size)
    return PoolSizes(
        num_blocks=int(blocks_each * (plan.num_beside + 1) * _KV_SPARE) + 1,
        kv_bytes=0,
        adapter_bytes=0,
        max_model_len=longest,
    )


def _settings(settings: Settings, folder: Path, plan: RoutesPlan) -> Settings:
    update = {
        "data_dir": folder,
        # A prompt that is alone is one chunk, as in the engine that has all adapters.
        "max_step_tokens": max(settings.max_step_tokens, plan.prompt_tokens),
        # Rounds have prompts in common, and all of each is to be computed.
        "prefix_cache": False,
        "prefetch": "none",
        "assist_processes": plan.num_assistants,
    }
    return settings.model_copy(update=update)


def _learned(subject: Subject, seconds: float) -> bytes:
    model, runner, sizes = subject.model, subject.runner, subject.sizes
    config = scheduler_config(subject.settings, sizes, model.vocab_size)
    adapters = synthetic_adapters(model.shapes, model.dtype, model.device, 1 << 30, runner.locate)
    costs = CostModel(subject_of(runner))
    Calibration(runner, config, adapters, perf_counter).run(costs, seconds)
    return costs.to_json()
