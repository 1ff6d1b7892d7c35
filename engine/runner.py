"""Computes steps: one forward pass of the base model with the adapters of its rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.placement import EarlyAdapter
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.assist_port import Assist
from loraplex.engine.batch import BatchBuilder, BatchLayout, StepBatch
from loraplex.engine.cold_pass import ColdPass
from loraplex.engine.cold_passes import Advanced, Begun, ColdPasses
from loraplex.engine.decode_graphs import (
    BUCKETS,
    MAX_KEYS,
    MAX_RANK,
    DecodeGraphs,
    GraphInputs,
    Record,
    RecordableAttention,
)
from loraplex.engine.fused import fused_forwards
from loraplex.engine.kv_copies import KvCopies
from loraplex.engine.kv_pages import release_blocks
from loraplex.engine.launched import Launched, PassDraw, step_output
from loraplex.engine.linear_group import Detour
from loraplex.engine.lora_rows import LoraRows
from loraplex.engine.model import LoadedModel
from loraplex.engine.plan import Chunk, StepOutput, StepPlan
from loraplex.engine.sampler import NOTHING_DRAWN, Draw, draw
from loraplex.kernels.attention import Attention, KvCache, KvLayout, Scoring, allocate_kv_cache
from loraplex.kernels.attention_choice import choose_attention
from loraplex.kernels.segment_buffers import SegmentBuffers

NOTHING_ARRIVES: Mapping[AdapterKey, LoadProgress] = MappingProxyType({})


def kv_bytes_per_block(model: LoadedModel, block_size: int) -> int:
    """Bytes that one KV block takes in all layers together."""
    per_token = sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in model.layers)
    return per_token * block_size * model.dtype.itemsize


@dataclass(frozen=True, slots=True)
class _StepAttention:
    """Attention of one step over the pool; the model's layers call it."""

    attention: Attention[Any]
    caches: Sequence[KvCache]
    metadata: Any

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        return self.attention.attend(q, k, v, self.caches[layer], self.metadata, scoring)


class ModelRunner:
    """A base model with its pool of KV blocks, and one in the host's memory."""

    def __init__(
        self,
        model: LoadedModel,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        assist: Assist | None = None,
    ) -> None:
        """Blocks are of ``block_size`` tokens; ``num_host_blocks`` hold what is swapped out.
        ``assist`` computes on the host what of adapters is not on the device yet."""
        kernels = model.kernels
        cpu_lora = kernels.lora if kernels and kernels.lora.supports(model.dtype) else None
        self._model = model
        self._lora = model.lora
        self.block_size = block_size
        self.assist = assist
        self.has_news: Callable[[], bool] = bool
        """Ends the waits of passes for layers, once it turns true: others may be about to run."""
        kv_layout = KvLayout(num_blocks, block_size)
        host_layout = KvLayout(num_host_blocks, block_size)
        self._layout = BatchLayout(
            attention=choose_attention(
                kv_layout,
                frozenset(model.layers),
                dtype=model.dtype,
                device=model.device,
                kernels=kernels,
            ),
            vocab_size=model.vocab_size,
            cpu_lora=cpu_lora,
            dtype=model.dtype,
            device=model.device,
        )
        self._builder = BatchBuilder(self._layout)
        on_gpu = model.device.type == "cuda"
        self._beside = torch.cuda.Stream(model.device) if on_gpu else None  # type: ignore[no-untyped-call]  # torch has no types here
        self.num_steps = {False: 0, True: 0}
        """That were computed, by whether it was by a graph."""
        self._caches = _allocate(model, kv_layout, model.device)
        self._passes = ColdPasses(self._begin_pass)
        self._copies = KvCopies(self._caches, _allocate(model, host_layout, torch.device("cpu")))

    @property
    def model(self) -> LoadedModel:
        """The base model that it computes."""
        return self._model

    @property
    def num_cold_passes(self) -> int:
        """See `core.Runner`."""
        return len(self._passes)

    @property
    def num_assistants(self) -> int:
        """See `core.Runner`."""
        return 0 if self.assist is None else self.assist.num_ready

    @property
    def shapes(self) -> BaseShapes:
        """What an adapter can be attached to."""
        return self._model.shapes

    @property
    def kernels(self) -> str:
        """Which code computes here; step times depend on it."""
        adapters = "torch" if self._layout.cpu_lora is None else "compiled code"
        if self._layout.device.type != "cpu":
            adapters = "triton"
        return (
            f"adapters by {adapters}, dense layers by {self._model.packer.name}, "
            f"attention by {type(self._layout.attention).__name__}, "
            f"{len(fused_forwards(self._model.network))} fused modules, "
            f"{'with' if self._builder.graphs else 'no'} graphs"
        )

    @property
    def overlaps(self) -> bool:
        """See `core.Runner`."""
        return self._layout.device.type != "cpu"

    @property
    def reads_b_transposed(self) -> bool:
        """True if adapters' `b` should lie transposed in memory; any other way is changed."""
        return self._layout.cpu_lora is not None

    def locate(self, weights: AdapterWeights) -> AdapterWeights:
        """Prepare weights that have just been loaded for compiled kernels; torch needs nothing."""
        if self._layout.device.type == "cpu" and self._layout.cpu_lora is None:
            return weights
        return self._lora.locate(
            weights,
            self._layout.dtype,
            self._layout.device,
            on_cpu=self._layout.cpu_lora is not None,
        )

    def measure_copy_ms(self) -> float:
        """Time to copy one KV block to the host or back; before anything is in them."""
        return self._copies.measure_ms_per_block()

    def keep_passes(self, plan: StepPlan) -> None:
        """See `core.Runner`."""
        self._passes.keep(plan.cold)

    def copy(self, plan: StepPlan) -> None:
        """Copy KV blocks to the host, give up the memory of those that are lent, copy from the
        host."""
        self._copies.to_host(plan.copies_out)
        if plan.lent_blocks:
            release_blocks(self._caches, plan.lent_blocks)
        self._copies.to_device(plan.copies_in)

    def build(
        self,
        plan: StepPlan,
        adapters: Mapping[AdapterKey, AdapterWeights],
        arriving: Mapping[AdapterKey, LoadProgress] = NOTHING_ARRIVES,
    ) -> StepBatch:
        """Turn a plan into device tensors; ``adapters`` holds all that it uses."""
        self._passes.begin(plan.cold, arriving)
        return self._builder.build(plan, adapters)

    def launch(self, batch: StepBatch) -> Launched | StepBatch:
        """See `core.Runner`."""
        if not self.overlaps:
            return batch
        return Launched.of(batch, self._draw(batch), self._advance(batch))

    def collect(self, launched: Launched | StepBatch) -> StepOutput:
        """See `core.Runner`."""
        if isinstance(launched, StepBatch):
            return step_output(launched, self._draw(launched), self._advance(launched))
        return launched.output()

    def abandon(self) -> None:
        """See `core.Runner`."""
        if self._beside is not None:
            with suppress(RuntimeError):  # of the device, which the step has raised already
                torch.cuda.synchronize(self._layout.device)
        self._passes.give_up()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """On a GPU, queue what runs inside beside the steps, and wait for it at the end: from then
        on steps may read it. Safe from any thread.

        Memory that is taken inside goes to the next that runs here as soon as its tensors are gone,
        whatever steps still do: so the engine gives up adapters between steps alone.
        """
        if self._beside is None:
            yield
            return
        with torch.cuda.stream(self._beside):
            yield
        self._beside.synchronize()

    def run(self, batch: StepBatch) -> StepOutput:
        """Compute the batch and draw a token for each chunk that samples."""
        return self.collect(self.launch(batch))

    def record_graphs(
        self, record: Record, buckets: Sequence[int] = BUCKETS
    ) -> Iterator[DecodeGraphs]:
        """Record graphs for steps of few decodes, up to so many rows each; none where attention or
        adapters cannot be part of one. Yields what there is after each; see `use_graphs`."""
        layout, modules = self._layout, len(self._model.shapes.linears)
        attention = layout.attention
        if not isinstance(attention, RecordableAttention) or layout.cpu_lora is not None:
            return
        max_keys = min(MAX_KEYS, self._model.max_model_len)

        def new_inputs(num_rows: int, is_adapted: bool) -> GraphInputs:
            device, segments = layout.device, None
            if is_adapted:
                segments = SegmentBuffers.of(modules, num_rows, MAX_RANK, layout.dtype, device)
            return GraphInputs(
                ids_and_positions=torch.zeros(2, num_rows, dtype=torch.int64, device=device),
                rows=torch.arange(num_rows, device=device),
                attention=attention.buffers(num_rows, max_keys),
                segments=segments,
            )

        limits = MAX_RANK, max_keys
        yield from DecodeGraphs.record(new_inputs, self._forward_inputs, record, limits, buckets)

    def use_graphs(self, graphs: DecodeGraphs) -> None:
        """Compute the steps that fit into these graphs by them."""
        self._builder.graphs = graphs

    @torch.inference_mode()
    def logits(self, batch: StepBatch) -> Tensor:
        """Compute the batch; return ``[sampled rows, vocab]`` float32.

        Where an adapter has other tokens than the base model, rows are as wide as the widest, and
        hold −∞ for tokens that their own adapter does not have.
        """
        self.num_steps[batch.graph is not None] += 1
        if batch.graph is not None:
            return batch.graph.logits(len(batch.places)).float()
        return self._forward(batch)

    def _draw(self, batch: StepBatch) -> Draw:
        if not len(batch.input_ids):
            return NOTHING_DRAWN
        return draw(self.logits(batch), batch.sampling)

    def _begin_pass(self, chunk: Chunk, progress: LoadProgress) -> Begun:
        early: EarlyAdapter = progress.early
        batch = self._builder.build_pass(chunk, early.weights)
        stream = torch.cuda.current_stream(self._layout.device) if self.overlaps else None

        def forward(detour: Detour) -> Tensor:
            # Both belong to a thread. Steps and passes are queued on one stream, in order.
            with torch.inference_mode(), torch.cuda.stream(stream):
                return self._forward(batch, detour)

        return Begun(batch, ColdPass(self._lora, early, progress, forward, self.assist))

    def _advance(self, batch: StepBatch) -> list[PassDraw]:
        return [self._pass_draw(each) for each in self._passes.advance(batch.cold, self.has_news)]

    @torch.inference_mode()
    def _pass_draw(self, advanced: Advanced) -> PassDraw:
        batch, logits = advanced.begun.batch, advanced.begun.cold_pass.logits
        drawn = None if logits is None else draw(logits, batch.sampling)
        return PassDraw(advanced.key, advanced.output, batch, drawn)

    def _forward(self, batch: StepBatch, detour: Detour | None = None) -> Tensor:
        step = _StepAttention(self._layout.attention, self._caches, batch.attention)
        with self._lora.step(batch.body, batch.head, detour):
            logits = self._model.logits(batch.input_ids, batch.positions, batch.sampled_rows, step)
        return _within_vocabulary(logits.float(), batch.head, self._model.vocab_size)

    @torch.inference_mode()
    def _forward_inputs(self, inputs: GraphInputs) -> Tensor:
        step = _StepAttention(self._layout.attention, self._caches, inputs.attention.step)
        with self._lora.step(inputs.lora, inputs.lora):
            ids, positions = inputs.ids_and_positions
            return self._model.logits(ids, positions, inputs.rows, step)


def _within_vocabulary(logits: Tensor, rows: LoraRows, vocab_size: int) -> Tensor:
    if not rows.vocab_size:
        return logits
    num_tokens = torch.full((rows.num_rows, 1), vocab_size)
    for start, end, weights in rows.adapters:
        num_tokens[start:end] = weights.vocab_size or vocab_size
    token_ids = torch.arange(logits.shape[1], device=logits.device)
    return logits.masked_fill_(token_ids >= num_tokens.to(logits.device), -torch.inf)


def _allocate(model: LoadedModel, layout: KvLayout, device: torch.device) -> list[KvCache]:
    """An empty cache for each layer."""
    return [
        allocate_kv_cache(
            layout,
            layer.kv_heads,
            (layer.key_dim, layer.value_dim),
            dtype=model.dtype,
            device=device,
        )
        for layer in model.layers
    ]
