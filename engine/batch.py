"""Turns a plan into device tensors: the one place where a step's data moves to the device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch import Tensor

from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.lora_linear import AdapterRows, LoraRows
from loraplex.engine.plan import Chunk, StepPlan
from loraplex.engine.sampling_rows import SamplingRows, sampling_rows
from loraplex.kernels.attention_plan import (
    AttentionMetadata,
    KvLayout,
    Span,
    Window,
    plan_attention,
)
from loraplex.kernels.lora_cpu import CpuLora


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step on the device; every row is one token of one request."""

    input_ids: Tensor
    """``[rows]`` int64."""
    positions: Tensor
    """``[rows]`` int64, each within its own request."""
    sampled_rows: Tensor
    """``[n]`` int64, the last row of each chunk that samples."""
    attention: AttentionMetadata
    body: LoraRows
    head: LoraRows
    """Adapters of the sampled rows alone."""
    request_ids: tuple[str, ...]
    """Of the sampled rows."""
    sampled_keys: tuple[str, ...]
    """The same in the order of the plan."""
    sampling: SamplingRows
    """How the sampled rows are drawn."""


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """What the batches of one engine have in common."""

    kv: KvLayout
    windows: frozenset[Window]
    vocab_size: int
    dtype: torch.dtype
    device: torch.device
    cpu_lora: CpuLora | None = None
    """The compiled kernel of adapters, on CPUs that have one."""


def build_batch(
    plan: StepPlan, adapters: Mapping[AdapterKey, AdapterWeights], layout: BatchLayout
) -> StepBatch:
    """Lay out the plan's chunks as rows, in order.

    Args:
        plan: at least one chunk.
        adapters: weights of every adapter that the plan uses, on the device.
        layout: of the engine.
    """
    chunks = plan.chunks
    lengths = [len(chunk.token_ids) for chunk in chunks]
    ends = list(accumulate(lengths))
    sampling = [(end - 1, chunk) for end, chunk in zip(ends, chunks, strict=True) if chunk.sample]
    spans = [
        Span(chunk.start, length, chunk.block_table)
        for chunk, length in zip(chunks, lengths, strict=True)
    ]
    positions = chain.from_iterable(range(span.start, span.start + span.length) for span in spans)

    def to_device(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(layout.device)

    return StepBatch(
        input_ids=to_device([*chain.from_iterable(chunk.token_ids for chunk in chunks)]),
        positions=to_device([*positions]),
        sampled_rows=to_device([row for row, _ in sampling]),
        attention=plan_attention(
            spans, layout.kv, layout.windows, dtype=layout.dtype, device=layout.device
        ),
        body=_lora_rows(chunks, lengths, adapters, layout.cpu_lora),
        head=_lora_rows(
            [chunk for _, chunk in sampling], [1] * len(sampling), adapters, layout.cpu_lora
        ),
        request_ids=tuple(chunk.request_id for _, chunk in sampling),
        sampled_keys=plan.sampled_keys,
        sampling=sampling_rows(
            [c.sample for c in chunks if c.sample], layout.vocab_size, layout.device
        ),
    )


def _lora_rows(
    chunks: Sequence[Chunk],
    lengths: Sequence[int],
    adapters: Mapping[AdapterKey, AdapterWeights],
    cpu_lora: CpuLora | None,
) -> LoraRows:
    """Join neighbouring chunks of one adapter, so that its weights are read once."""
    ranges: list[AdapterRows] = []
    row = 0
    for chunk, length in zip(chunks, lengths, strict=True):
        end = row + length
        if chunk.adapter is not None:
            weights = adapters[chunk.adapter]
            if ranges and ranges[-1].end == row and ranges[-1].weights is weights:
                ranges[-1] = ranges[-1]._replace(end=end)
            else:
                ranges.append(AdapterRows(row, end, weights))
        row = end
    return LoraRows.of(row, ranges, cpu_lora)
