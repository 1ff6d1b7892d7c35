"""Computes steps: one forward pass of the base model with the adapters of its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.batch import BatchBuilder, BatchLayout, StepBatch
from loraplex.engine.kv_copies import KvCopies
from loraplex.engine.kv_pages import release_blocks
from loraplex.engine.lora_linear import LoraRows
from loraplex.engine.model import LoadedModel
from loraplex.engine.plan import StepOutput, StepPlan
from loraplex.engine.sampler import sample
from loraplex.kernels.attention import KvCache, Scoring, allocate_kv_cache, paged_attention
from loraplex.kernels.attention_plan import AttentionMetadata, KvLayout
from loraplex.kernels.lora_cpu import CpuLora

_NOT_FINITE = "the model computed numbers that are not finite"


def kv_bytes_per_block(model: LoadedModel, block_size: int) -> int:
    """Bytes that one KV block takes in all layers together."""
    per_token = sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in model.layers)
    return per_token * block_size * model.dtype.itemsize


@dataclass(frozen=True, slots=True)
class _PagedStep:
    """Attention of one step over the pool; the model's layers call it."""

    caches: Sequence[KvCache]
    metadata: AttentionMetadata

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        return paged_attention(q, k, v, self.caches[layer], self.metadata, scoring)


class ModelRunner:
    """A base model with its pool of KV blocks, and one in the host's memory."""

    def __init__(
        self,
        model: LoadedModel,
        num_blocks: int,
        block_size: int,
        cpu_lora: CpuLora | None = None,
        num_host_blocks: int = 0,
    ) -> None:
        """``cpu_lora`` computes adapters where the model runs on a CPU, in a dtype that it knows;
        without it torch does."""
        if model.device.type != "cpu" or not (cpu_lora and cpu_lora.supports(model.dtype)):
            cpu_lora = None
        self._model = model
        self._lora = model.lora
        self.block_size = block_size
        kv_layout = KvLayout(num_blocks, block_size)
        host_layout = KvLayout(num_host_blocks, block_size)
        self._layout = BatchLayout(
            kv=kv_layout,
            windows=frozenset(layer.window for layer in model.layers),
            vocab_size=model.vocab_size,
            cpu_lora=cpu_lora,
            dtype=model.dtype,
            device=model.device,
        )
        self._builder = BatchBuilder(self._layout)
        self._caches = _allocate(model, kv_layout, model.device)
        self._copies = KvCopies(self._caches, _allocate(model, host_layout, torch.device("cpu")))

    @property
    def model(self) -> LoadedModel:
        """The base model that it computes."""
        return self._model

    @property
    def shapes(self) -> BaseShapes:
        """What an adapter can be attached to."""
        return self._model.shapes

    @property
    def kernels(self) -> str:
        """Which code computes adapters here; step times depend on it."""
        if self._layout.device.type != "cpu":
            return "adapters by triton"
        return "adapters by torch" if self._layout.cpu_lora is None else "adapters by compiled code"

    def locate(self, weights: AdapterWeights) -> AdapterWeights:
        """Prepare weights that have just been loaded for compiled kernels; torch needs nothing."""
        if self._layout.device.type == "cpu" and self._layout.cpu_lora is None:
            return weights
        return self._lora.locate(
            weights,
            self._layout.dtype,
            self._layout.device,
            b_is_transposed=self._layout.cpu_lora is not None,
        )

    def measure_copy_ms(self) -> float:
        """Time to copy one KV block to the host or back; before anything is in them."""
        return self._copies.measure_ms_per_block()

    def copy(self, plan: StepPlan) -> None:
        """Copy KV blocks to the host, give up the memory of those that are lent, copy from the
        host."""
        self._copies.to_host(plan.copies_out)
        if plan.lent_blocks:
            release_blocks(self._caches, plan.lent_blocks)
        self._copies.to_device(plan.copies_in)

    def build(self, plan: StepPlan, adapters: Mapping[AdapterKey, AdapterWeights]) -> StepBatch:
        """Turn a plan into device tensors; ``adapters`` holds all that it uses."""
        return self._builder.build(plan, adapters)

    def run(self, batch: StepBatch) -> StepOutput:
        """Compute the batch and draw a token for each chunk that samples."""
        sampled = sample(self.logits(batch), batch.sampling)
        token_ids = np.empty_like(sampled.token_ids)
        token_ids[batch.places] = sampled.token_ids
        keys, places = batch.sampled_keys, batch.places
        return StepOutput(
            token_ids,
            {keys[places[row]]: _NOT_FINITE for row in sampled.failed},
            {keys[places[row]]: found for row, found in sampled.logprobs.items()},
        )

    @torch.inference_mode()
    def logits(self, batch: StepBatch) -> Tensor:
        """Compute the batch; return ``[sampled rows, vocab]`` float32.

        Where an adapter has other tokens than the base model, rows are as wide as the widest, and
        hold −∞ for tokens that their own adapter does not have.
        """
        step = _PagedStep(self._caches, batch.attention)
        with self._lora.step(batch.body, batch.head):
            logits = self._model.logits(batch.input_ids, batch.positions, batch.sampled_rows, step)
        return _within_vocabulary(logits.float(), batch.head, self._model.vocab_size)


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
