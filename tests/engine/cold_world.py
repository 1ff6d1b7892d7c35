"""A runner whose adapters come layer by layer, when a test says so."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from threading import Semaphore, Thread

import torch
from tests import tiny_models
from tests.engine.architectures import ARCHITECTURES, Architecture
from tests.engine.packed_greedy import GREEDY, plan_of
from torch import Tensor

from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.placement import place
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.adapters.weights import AdapterWeights, VerifiedAdapter
from loraplex.engine.assist_port import Assist
from loraplex.engine.cold_passes import Advanced
from loraplex.engine.config import ModelConfig
from loraplex.engine.launched import PassDraw
from loraplex.engine.model import LoadedModel, load_model
from loraplex.engine.plan import Chunk, ColdChunk, SampleSpec, StepOutput, StepPlan
from loraplex.engine.runner import ModelRunner
from loraplex.engine.stored_adapters import StoredAdapters
from loraplex.kernels.cpu_kernels import CpuKernels

BLOCK_SIZE, NUM_BLOCKS = 4, 160
BLOCKS_EACH = 10
_NOISE = 100.0
"""What fills a cache that is forgotten: torch reads and hides positions beyond a window."""


class _Stopped(Exception):
    """Ends a copy that a test leaves where it is."""


class RecordingRunner(ModelRunner):
    """Keeps the logits of each pass, by request."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]  # handed on as they are
        self.pass_logits: dict[str, Tensor] = {}

    def _pass_draw(self, advanced: Advanced) -> PassDraw:
        logits = advanced.begun.cold_pass.logits
        if logits is not None:
            self.pass_logits[advanced.key] = logits.clone()
        return super()._pass_draw(advanced)


class Copy:
    """One adapter on its way; a thread copies the layers that the test gives."""

    def __init__(self, on_host: VerifiedAdapter, runner: ModelRunner) -> None:
        self.on_host = on_host
        self._runner = runner
        self._may_copy, self._is_stopped = Semaphore(0), False
        self.progress = LoadProgress(self._pace)
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()
        with self.progress._changed:
            self.progress._changed.wait_for(lambda: self.progress.of_layers, 10)

    @property
    def num_layers(self) -> int:
        return self.progress.of_layers

    def give(self, count: int = 1) -> None:
        """Let so many layers come; returns when they are there."""
        wanted = min(self.progress.num_layers + count, self.num_layers)
        self._may_copy.release(count)
        assert self.progress.wait_for(wanted, 10)

    def give_later(self) -> None:
        """Let all come, without waiting."""
        self._may_copy.release(self.num_layers)

    def poison_host(self, *, all_of_it: bool = False) -> None:
        """Fill with NaN what has been copied, or everything."""
        layers = self.on_host.outline.pairs.layers
        count = len(layers) if all_of_it else self.progress.num_layers
        for layer in layers[:count]:
            self.on_host.pairs.data[layer.start : layer.end] = nan

    def stop(self) -> None:
        self._is_stopped = True
        self._may_copy.release(self.num_layers + 1)
        self._thread.join()

    def _pace(self, _: int) -> None:
        self._may_copy.acquire()
        if self._is_stopped:
            raise _Stopped

    def _run(self) -> None:
        model = self._runner.model
        with suppress(_Stopped):
            place(
                self.on_host,
                dtype=model.dtype,
                device=model.device,
                progress=self.progress,
                prepare=self._runner.locate,
            )
        self.progress.end()


@dataclass
class ColdWorld:
    runner: RecordingRunner
    stored: StoredAdapters
    digests: Mapping[str, str]
    resident: Mapping[AdapterKey, AdapterWeights]
    copies: dict[AdapterKey, Copy] = field(default_factory=dict)

    def copy(self, name: str) -> Copy:
        """Begin to copy an adapter; one that was on its way before stays where it is."""
        if key(name) in self.copies:
            self.copies[key(name)].stop()
        copy = Copy(self.stored.read(self.digests[name]), self.runner)
        self.copies[key(name)] = copy
        return copy

    def step(self, *cold: ColdChunk, main: tuple[Chunk, ...] = ()) -> StepOutput:
        plan = StepPlan(0, plan_of(main).prefills, cold=cold)
        self.runner.keep_passes(plan)
        arriving = {each: copy.progress for each, copy in self.copies.items()}
        return self.runner.run(self.runner.build(plan, self.resident, arriving))

    def resident_logits(self, chunk: Chunk) -> Tensor:
        """What the route without any detour computes."""
        batch = self.runner.build(StepPlan(0, (chunk,)), self.resident)
        return self.runner.logits(batch).clone()

    def forget_cache(self) -> None:
        for cache in self.runner._caches:
            cache.keys.fill_(_NOISE)
            cache.values.fill_(_NOISE)

    def clear(self) -> None:
        """Give up what is under way, and what is on its way."""
        self.runner.abandon()
        for copy in self.copies.values():
            copy.stop()
        self.copies.clear()
        self.runner.pass_logits.clear()


def key(name: str) -> AdapterKey:
    return AdapterKey("tenant", name)


def chunk(
    name: str,
    adapter: str | None,
    place: int = 0,
    *,
    start: int = 0,
    length: int = 21,
    sample: SampleSpec | None = GREEDY,
) -> Chunk:
    """Of a prompt that depends on the name alone, in blocks of its own."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    ids = torch.randint(2, 320, (BLOCKS_EACH * BLOCK_SIZE,), generator=generator).tolist()
    blocks = tuple(range(place * BLOCKS_EACH, (place + 1) * BLOCKS_EACH))
    own = None if adapter is None else key(adapter)
    return Chunk(name, own, tuple(ids[start : start + length]), start, blocks, sample)


def everything(of: Chunk, *, may_assist: bool = False, wait_ms: float = 0.0) -> ColdChunk:
    return ColdChunk(of, 1 << 30, may_assist, wait_ms)


def widths(model: LoadedModel) -> dict[str, int]:
    return {path: out for path, (out, _) in model.shapes.linears.items()}


def options_of(architecture: Architecture, *, with_head: bool = True) -> dict[str, object]:
    """Of an adapter on all linear layers that are proven."""
    names = [each for each in architecture.linears if with_head or each != "lm_head"]
    is_conv = architecture.config.model_type == "gpt2"
    return {"target_modules": names, "r": 4, **({"fan_in_fan_out": True} if is_conv else {})}


def make_model(
    folder: Path, name: str, kernels: CpuKernels | None, dtype: str = "float32"
) -> LoadedModel:
    path = tiny_models.save_model(folder / "model", ARCHITECTURES[name].config)
    return load_model(ModelConfig(path, "tiny", "cpu", dtype), kernels)


def make_world(
    folder: Path,
    model: LoadedModel,
    adapters: Mapping[str, Mapping[str, object]],
    assist: Assist | None = None,
) -> ColdWorld:
    """With these adapters, each resident too, from a copy of its own."""
    runner = RecordingRunner(model, NUM_BLOCKS, BLOCK_SIZE, assist=assist)
    store = AdapterStore(folder / "store")
    stored = StoredAdapters(store, runner)
    digests, resident = {}, {}
    for seed, (name, options) in enumerate(adapters.items()):
        saved = tiny_models.save_adapter(folder / name, model.path, seed, **options)
        checkpoint = inspect(saved, model.shapes)
        store.put(checkpoint)
        digests[name] = checkpoint.digest
        resident[key(name)] = stored.place(stored.read(checkpoint.digest), LoadProgress())
    return ColdWorld(runner, stored, digests, resident)
