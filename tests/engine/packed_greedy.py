"""Drives a runner by hand: many requests in one batch, chunked prompts, permuted blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.plan import Chunk, SampleSpec, StepPlan
from loraplex.engine.runner import ModelRunner

GREEDY = SampleSpec(temperature=0.0, top_p=1.0, top_k=0, seed=0, position=0)


@dataclass
class Request:
    request_id: str
    prompt: tuple[int, ...]
    adapter: AdapterKey | None = None
    tokens: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    num_computed: int = 0
    block_table: tuple[int, ...] = ()

    def chunk(self, size: int) -> Chunk:
        known = (*self.prompt, *self.tokens)
        end = min(self.num_computed + size, len(known))
        return Chunk(
            request_id=self.request_id,
            adapter=self.adapter,
            token_ids=known[self.num_computed : end],
            start=self.num_computed,
            block_table=self.block_table,
            sample=GREEDY if end == len(known) else None,
        )


def plan_of(chunks: Sequence[Chunk]) -> StepPlan:
    """Rows in the order that plans promise: base first, then grouped by adapter."""
    ordered = sorted(chunks, key=lambda chunk: chunk.adapter or ("", ""))
    return StepPlan(0, tuple(ordered))


def generate(
    runner: ModelRunner,
    requests: Sequence[Request],
    num_tokens: int,
    *,
    chunk_size: int,
    block_size: int,
    num_blocks: int,
    adapters: Mapping[AdapterKey, AdapterWeights] | None = None,
) -> int:
    """Fill in `tokens` and `logits` of all requests; return the number of steps.

    One more request joins at each step, so that prompts run beside decodes.
    """
    free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).tolist()
    for request in requests:
        needed = -(-(len(request.prompt) + num_tokens) // block_size)
        request.block_table = tuple(free.pop() for _ in range(needed))
    step = 0
    while any(len(request.tokens) < num_tokens for request in requests):
        step += 1
        active = [r for r in requests[:step] if len(r.tokens) < num_tokens]
        if active:
            _step(runner, active, chunk_size, adapters or {})
    return step


def _step(
    runner: ModelRunner,
    active: Sequence[Request],
    chunk_size: int,
    adapters: Mapping[AdapterKey, AdapterWeights],
) -> None:
    by_id = {request.request_id: request for request in active}
    plan = plan_of([request.chunk(chunk_size) for request in active])
    batch = runner.build(plan, adapters)
    logits = runner.logits(batch)
    for place, row in zip(batch.places, logits, strict=True):
        request_id = batch.sampled_keys[place]
        by_id[request_id].logits.append(row)
        by_id[request_id].tokens.append(int(row.argmax()))
    for chunk in plan.chunks:
        by_id[chunk.request_id].num_computed += len(chunk.token_ids)
