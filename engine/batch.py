"""Turns a plan into device tensors: the one place where a step's data moves to the device."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.decode_graphs import DecodeGraph, DecodeGraphs
from loraplex.engine.lora_rows import AdapterRows, LoraRows
from loraplex.engine.plan import Chunk, ColdChunk, Decodes, Roster, StepPlan
from loraplex.engine.sampling_rows import SampledSpecs, SamplingRows, sampling_rows
from loraplex.kernels.attention import Attention, Spans
from loraplex.kernels.lora_cpu import CpuLora
from loraplex.kernels.staging import Staging

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step on the device; every row is one token of one request."""

    input_ids: Tensor
    """``[rows]`` int64."""
    positions: Tensor
    """``[rows]`` int64, each within its own request."""
    sampled_rows: Tensor
    """``[n]`` int64, the last row of each chunk that samples."""
    attention: Any
    """What the runner's attention laid out."""
    body: LoraRows
    head: LoraRows
    """Adapters of the sampled rows alone."""
    sampled_keys: tuple[str, ...]
    """`Request.key` of those that sample, in the order of the plan."""
    places: Ints
    """``[n]``: where each sampled row stands in that order."""
    sampling: SamplingRows
    """How the sampled rows are drawn."""
    graph: DecodeGraph | None = None
    """What computes it, if its tensors are those of a graph: they have rows that are not used
    behind its own."""
    cold: tuple[ColdChunk, ...] = ()
    """Passes that go on in the same step; their rows are in batches of their own."""

    @classmethod
    def of_passes(cls, cold: tuple[ColdChunk, ...], device: torch.device) -> Self:
        """Of a step that computes passes alone."""
        nothing = torch.zeros(0, dtype=torch.int64, device=device)
        rows = LoraRows(0, ())
        return cls(
            input_ids=nothing,
            positions=nothing,
            sampled_rows=nothing,
            attention=None,
            body=rows,
            head=rows,
            sampled_keys=(),
            places=np.zeros(0, np.int64),
            sampling=SamplingRows(0, (), None, ()),
            cold=cold,
        )


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """What the batches of one engine have in common."""

    attention: Attention[Any]
    vocab_size: int
    dtype: torch.dtype
    device: torch.device
    cpu_lora: CpuLora | None = None
    """The compiled kernel of adapters, on CPUs that have one."""


class BatchBuilder:
    """Lays out plans as rows. What follows from who decodes is made once for all steps in which the
    same choices decode and nothing else runs."""

    def __init__(self, layout: BatchLayout) -> None:
        self._layout = layout
        self.graphs: DecodeGraphs | None = None
        """For steps without prompts that fit into one, once there are any."""
        self._kept: _Decoding | None = None
        """Of the step before, if it had no prompts."""

    def build(self, plan: StepPlan, adapters: Mapping[AdapterKey, AdapterWeights]) -> StepBatch:
        """Lay out a plan that computes something, but the chunks of passes.

        ``adapters`` has the weights of every adapter that the rest uses, on the device.
        """
        if not plan.num_tokens:
            return StepBatch.of_passes(plan.cold, self._layout.device)
        stage = Staging(self._layout.device)
        if plan.prefills:
            self._kept = None
            batch = self._mixed(plan, adapters, stage)
        else:
            batch = self._decodes(plan.decodes, adapters, stage)
        stage.send()
        return replace(batch, cold=plan.cold) if plan.cold else batch

    def build_pass(self, chunk: Chunk, adapter: AdapterWeights) -> StepBatch:
        """Lay out one chunk alone, on an adapter of which not all has come."""
        assert chunk.adapter is not None, "the base model is always there"
        stage = Staging(self._layout.device)
        batch = self._mixed(StepPlan(0, prefills=(chunk,)), {chunk.adapter: adapter}, stage)
        stage.send()
        return batch

    def _mixed(
        self, plan: StepPlan, adapters: Mapping[AdapterKey, AdapterWeights], stage: Staging
    ) -> StepBatch:
        layout = self._layout
        parts = _Parts.of(plan)
        samples = parts.samples.nonzero()[0]
        body, head = self._lora_rows(plan, parts, adapters)
        return StepBatch(
            input_ids=stage.add(parts.token_ids()),
            positions=stage.add(parts.positions()),
            sampled_rows=stage.add(parts.lengths.cumsum()[samples] - 1),
            attention=layout.attention.plan(Spans(parts.starts, parts.lengths, parts.block_tables)),
            body=body,
            head=head,
            sampled_keys=plan.sampled_keys,
            places=parts.places[samples],
            sampling=sampling_rows(
                SampledSpecs.of_plan(plan).in_order(parts.places[samples]),
                layout.vocab_size,
                stage,
            ),
        )

    def _decodes(
        self, decodes: Decodes, adapters: Mapping[AdapterKey, AdapterWeights], stage: Staging
    ) -> StepBatch:
        """Rows are in the order of the plan, and all are sampled."""
        layout, roster = self._layout, decodes.roster
        kept = self._kept
        if kept is None or kept.roster is not roster:
            kept = self._kept = _Decoding.of(roster, adapters, layout)
        sampling = kept.greedy
        if sampling is None or decodes.specs:
            specs = SampledSpecs(roster.sampling, decodes.draws, decodes.specs)
            sampling = sampling_rows(specs, layout.vocab_size, stage)
        graph = None if self.graphs is None else self.graphs.fitting(decodes, kept.lora)
        if graph is None:
            ids, positions = map(stage.add, (decodes.token_ids, decodes.positions))
            rows, spans = kept.rows, Spans(decodes.positions, kept.lengths, decodes.block_tables)
            attention = layout.attention.plan(spans)
        else:
            graph.inputs.fill(decodes, kept.lora)
            ids, positions = graph.inputs.ids_and_positions
            rows, attention = graph.inputs.rows, graph.inputs.attention.step
        return StepBatch(
            input_ids=ids,
            positions=positions,
            sampled_rows=rows,
            attention=attention,
            body=kept.lora,
            head=kept.lora,
            sampled_keys=roster.keys,
            places=kept.places,
            sampling=sampling,
            graph=graph,
        )

    def _lora_rows(
        self, plan: StepPlan, parts: "_Parts", adapters: Mapping[AdapterKey, AdapterWeights]
    ) -> tuple[LoraRows, LoraRows]:
        keys, cpu_lora = list(plan.adapters()), self._layout.cpu_lora
        weights = [None if key is None else adapters[key] for key in keys]
        of_body = np.bincount(parts.groups, parts.lengths, len(keys))
        of_head = np.bincount(parts.groups, parts.samples, len(keys))
        return _rows(weights, of_body, cpu_lora), _rows(weights, of_head, cpu_lora)


@dataclass(frozen=True, slots=True)
class _Decoding:
    """What follows from who decodes, whatever they have got so far."""

    roster: Roster
    lora: LoraRows
    rows: Tensor
    """``[n]`` int64: all rows, on the device; ``places`` are the same on the host."""
    places: Ints
    lengths: Ints
    """``[n]``: ones."""
    greedy: SamplingRows | None
    """Of steps in which none asks for more; None if some are drawn by chance."""

    @classmethod
    def of(
        cls, roster: Roster, adapters: Mapping[AdapterKey, AdapterWeights], layout: BatchLayout
    ) -> Self:
        places = np.arange(len(roster.keys))
        weights = [None if key is None else adapters[key] for key in roster.adapters]
        is_greedy = not (roster.sampling["temperature"] > 0).any()
        return cls(
            roster=roster,
            lora=_rows(weights, roster.lengths, layout.cpu_lora),
            rows=torch.from_numpy(places).to(layout.device),
            places=places,
            lengths=np.ones_like(places),
            greedy=SamplingRows(len(places), (), None, ()) if is_greedy else None,
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """Decodes and chunks of a plan, in the order of rows. Arrays have one entry for each part."""

    plan: StepPlan
    order: Ints
    """Which part of the plan comes when: decodes are its first, then chunks."""
    groups: Ints
    """Numbers of their adapters in `StepPlan.adapters`, rising."""
    starts: Ints
    lengths: Ints
    samples: NDArray[np.bool_]
    places: Ints
    """Of those that sample, their place in `StepPlan.sampled_keys`."""
    block_tables: NDArray[np.int32]

    @classmethod
    def of(cls, plan: StepPlan) -> "_Parts":
        decodes, chunks = plan.decodes, plan.prefills
        numbers = plan.adapters()
        of_runs = [numbers[adapter] for adapter in decodes.roster.adapters]
        of_decodes = np.array(of_runs, np.int64).repeat(decodes.roster.lengths)
        groups = _joined(of_decodes, [numbers[chunk.adapter] for chunk in chunks])
        samples = _joined(
            np.ones(len(decodes), np.bool_), [chunk.sample is not None for chunk in chunks]
        )
        order = groups.argsort(kind="stable")
        return cls(
            plan=plan,
            order=order,
            groups=groups[order],
            starts=_joined(decodes.positions, [chunk.start for chunk in chunks])[order],
            lengths=_joined(
                np.ones(len(decodes), np.int64), [len(chunk.token_ids) for chunk in chunks]
            )[order],
            samples=samples[order],
            places=(samples.cumsum() - 1)[order],
            block_tables=_block_tables(plan)[order],
        )

    def token_ids(self) -> Ints:
        """Of all rows."""
        return self._of_rows(self.plan.decodes.token_ids, [c.token_ids for c in self.plan.prefills])

    def positions(self) -> Ints:
        """Of all rows."""
        chunks = self.plan.prefills
        spans = [range(c.start, c.start + len(c.token_ids)) for c in chunks]
        return self._of_rows(self.plan.decodes.positions, spans)

    def _of_rows(self, of_decodes: Ints, of_chunks: list[Any]) -> Ints:
        if not of_chunks:
            return of_decodes[self.order]
        first_rows = np.empty_like(self.order)
        first_rows[self.order] = self.lengths.cumsum() - self.lengths
        values = np.empty(int(self.lengths.sum()), np.int64)
        values[first_rows[: len(of_decodes)]] = of_decodes
        for first, chunk in zip(first_rows[len(of_decodes) :].tolist(), of_chunks, strict=True):
            values[first : first + len(chunk)] = chunk
        return values


def _joined(of_decodes: NDArray[Any], of_chunks: list[Any]) -> NDArray[Any]:
    if not of_chunks:
        return of_decodes
    return np.concatenate((of_decodes, np.array(of_chunks, of_decodes.dtype)))


def _block_tables(plan: StepPlan) -> NDArray[np.int32]:
    """Of decodes, then chunks, [parts, blocks]; 0 or -1 beyond a part's own."""
    of_decodes, chunks = plan.decodes.block_tables, plan.prefills
    if not chunks:
        return of_decodes
    width = max(of_decodes.shape[1], *(len(chunk.block_table) for chunk in chunks))
    tables = np.zeros((len(of_decodes) + len(chunks), width), np.int32)
    tables[: len(of_decodes), : of_decodes.shape[1]] = of_decodes
    for table, chunk in zip(tables[len(of_decodes) :], chunks, strict=True):
        table[: len(chunk.block_table)] = chunk.block_table
    return tables


def _rows(
    weights: list[AdapterWeights | None],
    num_rows: NDArray[Any],
    cpu_lora: CpuLora | None,
) -> LoraRows:
    """Rows of each adapter, or None for the base model's, one after the other."""
    ends = num_rows.astype(np.int64).cumsum().tolist()
    starts = [0, *ends]
    ranges = [
        AdapterRows(start, end, of_adapter)
        for start, end, of_adapter in zip(starts, ends, weights, strict=False)
        if of_adapter is not None and end > start
    ]
    return LoraRows.of(ends[-1] if ends else 0, ranges, cpu_lora)
