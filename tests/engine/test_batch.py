"""How the chunks of a plan become rows."""

from collections import defaultdict
from types import MappingProxyType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.build import config, submit
from tests.engine.build import scheduler as scheduler_of
from tests.engine.packed_greedy import GREEDY, plan_of

from loraplex.adapters.residency import Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.batch import BatchBuilder, BatchLayout, StepBatch
from loraplex.engine.lora_rows import AdapterRows, LoraRows
from loraplex.engine.plan import Chunk, StepOutput, StepPlan
from loraplex.engine.protocol import Sampling
from loraplex.kernels.attention import KvLayout
from loraplex.kernels.attention_torch import TorchAttention

BLOCK_SIZE = 4
CPU = torch.device("cpu")
KV = KvLayout(num_blocks=64, block_size=BLOCK_SIZE)
LAYOUT = BatchLayout(
    attention=TorchAttention(KV, [None, 3], torch.float32, CPU),
    vocab_size=320,
    dtype=torch.float32,
    device=CPU,
)
RED, BLUE = AdapterKey("a", "red"), AdapterKey("b", "blue")
WEIGHTS = {key: AdapterWeights(num_bytes=0, pairs=MappingProxyType({})) for key in (RED, BLUE)}


def chunk(
    name: str,
    token_ids: tuple[int, ...],
    *,
    start: int = 0,
    blocks: tuple[int, ...] = (0,),
    adapter: AdapterKey | None = None,
    samples: bool = True,
) -> Chunk:
    return Chunk(name, adapter, token_ids, start, blocks, GREEDY if samples else None)


def build(*chunks: Chunk) -> StepBatch:
    return BatchBuilder(LAYOUT).build(plan_of(chunks), WEIGHTS)


def test_rows_are_the_tokens_of_the_chunks_in_order() -> None:
    batch = build(
        chunk("decode", (7,), start=5, blocks=(9, 3)),
        chunk("prompt", (4, 5, 6), start=2, blocks=(8, 1), samples=False),
        chunk("last", (1, 2)),
    )
    assert batch.input_ids.tolist() == [7, 4, 5, 6, 1, 2]
    assert batch.positions.tolist() == [5, 2, 3, 4, 0, 1]
    assert batch.attention.slot_mapping.tolist() == [13, 34, 35, 4, 0, 1]


def test_logits_are_kept_of_the_last_row_of_chunks_that_sample() -> None:
    batch = build(
        chunk("decode", (7,), start=3),
        chunk("goes on", (4, 5), blocks=(1,), samples=False),
        chunk("ends", (1, 2, 3), blocks=(2,)),
    )
    assert batch.sampled_keys == ("decode", "ends")
    assert batch.sampled_rows.tolist() == [0, 5]
    assert batch.sampling.num_rows == 2


def test_neighbours_of_one_adapter_share_a_segment() -> None:
    batch = build(
        chunk("base", (1,)),
        chunk("red 1", (1, 2), blocks=(1,), adapter=RED),
        chunk("red 2", (3,), blocks=(2,), adapter=RED, samples=False),
        chunk("blue", (4,), blocks=(3,), adapter=BLUE),
    )
    assert batch.body == LoraRows(
        5, (AdapterRows(1, 4, WEIGHTS[RED]), AdapterRows(4, 5, WEIGHTS[BLUE]))
    )
    assert batch.head == LoraRows(
        3, (AdapterRows(1, 2, WEIGHTS[RED]), AdapterRows(2, 3, WEIGHTS[BLUE]))
    )


def test_adapters_of_two_tenants_are_never_joined() -> None:
    other = AdapterKey("c", "red")
    weights = {**WEIGHTS, other: AdapterWeights(num_bytes=0, pairs=MappingProxyType({}))}
    chunks = [chunk("1", (1,), adapter=RED), chunk("2", (1,), blocks=(1,), adapter=other)]
    batch = BatchBuilder(LAYOUT).build(plan_of(chunks), weights)
    assert [(rows.start, rows.end) for rows in batch.body.adapters] == [(0, 1), (1, 2)]


def test_an_adapter_that_is_not_resident_is_an_error() -> None:
    with pytest.raises(KeyError, match="red"):
        BatchBuilder(LAYOUT).build(plan_of([chunk("1", (1,), adapter=RED)]), {})


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=8))
def test_every_row_is_attended_once_and_written_to_a_slot_of_its_own(
    spans: list[tuple[int, int]],
) -> None:
    chunks = [
        chunk(str(n), (1,) * length, start=start, blocks=tuple(range(n * 8, n * 8 + 8)))
        for n, (start, length) in enumerate(spans)
    ]
    batch = build(*chunks)
    rows = sum(length for _, length in spans)
    slots = batch.attention.slot_mapping.tolist()
    assert len(set(slots)) == len(slots) == rows
    assert KV.null_slot not in slots
    for plan in batch.attention.plans.values():
        attended = [row for group in plan.decodes for row in group.rows.tolist()]
        for part in plan.chunks:
            attended.extend(range(part.start, part.end))
        assert sorted(attended) == list(range(rows))


def as_chunks(plan: StepPlan) -> StepPlan:
    """The same plan without arrays."""
    return StepPlan(plan.step, plan.chunks)


@settings(deadline=None, max_examples=15)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.integers(1, 7), st.sampled_from([None, "red", "blue"]), st.sampled_from([0.0, 1])
            ),
            max_size=3,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_decodes_as_arrays_give_the_batch_that_they_give_as_chunks(
    arrivals: list[list[tuple[int, str | None, float]]],
) -> None:
    residency = Residency(10)
    scheduler = scheduler_of(config(num_blocks=64, max_running=16), residency)
    weights = defaultdict(lambda: AdapterWeights(num_bytes=0, pairs=MappingProxyType({})))
    builder = BatchBuilder(LAYOUT)
    for number, requests in enumerate([*arrivals, *[[]] * 6]):
        for index, (num_tokens, adapter, temperature) in enumerate(requests):
            sampling = Sampling(max_tokens=5, temperature=temperature, seed=index, top_p=0.9)
            asked = submit(f"{number}.{index}", num_tokens, adapter=adapter, sampling=sampling)
            scheduler.add(asked, 0.0, adapter_bytes=1)
        plan = scheduler.plan(0.0)
        if plan.num_requests:
            ours = builder.build(plan, weights)
            theirs = BatchBuilder(LAYOUT).build(as_chunks(plan), weights)
            assert rows_of(ours) == rows_of(theirs)
        scheduler.commit(plan, StepOutput.of(plan, {}))
        for key in plan.loads:
            residency.finish_load(key)


def rows_of(batch: StepBatch) -> tuple[object, ...]:
    """All that a batch says, in lists."""
    keys = [batch.sampled_keys[place] for place in batch.places]
    drawn = [
        (group.rows.tolist(), group.drawn and group.drawn.uniform.tolist())
        for group in batch.sampling.groups
    ]
    slots = batch.attention.slot_mapping.tolist()
    attended = [
        (group.rows.tolist(), group.slots.tolist(), group.mask.tolist())
        for plan in batch.attention.plans.values()
        for group in plan.decodes
    ]
    tokens = batch.input_ids.tolist(), batch.positions.tolist(), batch.sampled_rows.tolist()
    return (*tokens, keys, drawn, slots, attended, batch.body, batch.head)
