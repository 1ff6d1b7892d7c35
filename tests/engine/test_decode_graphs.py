"""Steps by graphs, recorded and replayed on a CPU: all but the attention is what a GPU runs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry
from tests import tiny_models
from tests.engine.alone import load_adapters
from tests.engine.model_world import ModelWorld
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.batch import BatchBuilder, StepBatch
from loraplex.engine.config import ModelConfig
from loraplex.engine.decode_graphs import MAX_RANK, Recorded
from loraplex.engine.graph_metrics import GraphCollector
from loraplex.engine.model import LoadedModel, load_model
from loraplex.engine.runner import ModelRunner
from loraplex.kernels.attention import KvCache, Scoring
from loraplex.kernels.attention_paged import TritonAttention
from loraplex.kernels.paged_step import PagedLayout, PagedStep
from loraplex.platform.worker_graphs import use_recorded

BLOCK_SIZE, NUM_BLOCKS, BUCKETS = 4, 40, (1, 4)
CPU = torch.device("cpu")
Adapters = Mapping[AdapterKey, AdapterWeights]


class PagedTorch(TritonAttention):
    """Attention by torch that knows a step by the tensors that Triton's kernels read, and no more;
    interpreted these take seconds for a step."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KvCache, metadata: PagedStep, scoring: Scoring
    ) -> Tensor:
        is_written = metadata.slots >= 0
        for pages, new in zip(cache, (k, v), strict=True):
            pages.flatten(0, 1)[metadata.slots[is_written]] = new[is_written]
        out = torch.zeros(*q.shape[:2], v.shape[-1])
        for tile in (*metadata.decodes.tolist(), *metadata.chunks.tolist()):
            sequence, first, num_rows, position = tile
            table = metadata.block_tables[sequence]
            for row in range(num_rows):
                seen = slice(position + row + 1)
                keys, values = (pages[table].flatten(0, 1)[seen].transpose(0, 1) for pages in cache)
                out[first + row] = scaled_dot_product_attention(
                    q[first + row, :, None], keys, values, scale=scoring.scaling, enable_gqa=True
                ).squeeze(1)
        return out


class WatchedRunner(ModelRunner):
    """Computes on a CPU as a GPU does, and keeps the logits of each step."""

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(model, NUM_BLOCKS, BLOCK_SIZE)
        attention = PagedTorch(PagedLayout(BLOCK_SIZE, CPU))
        self._layout = replace(self._layout, attention=attention)
        self._builder = BatchBuilder(self._layout)
        self.seen: list[Tensor] = []
        self.sizes: list[int | None] = []
        """Rows of the graph of each step."""

    def logits(self, batch: StepBatch) -> Tensor:
        logits = super().logits(batch)
        self.seen.append(logits.clone())
        self.sizes.append(None if batch.graph is None else batch.graph.inputs.num_rows)
        return logits


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    config = tiny_models.llama_config(num_hidden_layers=1)
    folder = tiny_models.save_model(tmp_path_factory.mktemp("tiny"), config)
    return load_model(ModelConfig(folder, "tiny", "cpu", "float32"))


@pytest.fixture(scope="module")
def adapters(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Adapters:
    """`large` has a rank beyond that of graphs, `gains` does more than low-rank updates."""
    folder = tmp_path_factory.mktemp("adapters")
    configs = {
        "first": {"r": 7, "target_modules": ["q_proj", "down_proj", "lm_head"]},
        "second": {"r": 2, "target_modules": ["v_proj", "down_proj"]},
        "large": {"r": MAX_RANK + 1, "target_modules": ["q_proj"]},
        "gains": {"r": 2, "target_modules": ["v_proj"], "use_dora": True},
    }
    saved = {
        name: tiny_models.save_adapter(folder / name, model.path, seed, **config)
        for seed, (name, config) in enumerate(configs.items())
    }
    loaded = load_adapters(model, saved, AdapterStore(folder / "store"))
    return {key: model.lora.locate(w, torch.float32, CPU) for key, w in loaded.items()}


@pytest.fixture
def runner(model: LoadedModel) -> WatchedRunner:
    runner = WatchedRunner(model)
    *_, graphs = runner.record_graphs(record, BUCKETS)
    runner.use_graphs(graphs)
    return runner


def record(compute: Callable[[], Tensor]) -> Recorded:
    """Compute once more at each replay, on the same tensors, into the same tensor."""
    logits = compute().clone()
    return Recorded(lambda: logits.copy_(compute()), logits)


def generate(
    runner: WatchedRunner, adapters: Adapters, requests: Mapping[str, str | None]
) -> dict[str, list[int]]:
    """Run requests on these adapters, a prompt of another length each; what is free is NaN."""
    config = {"num_blocks": NUM_BLOCKS, "max_step_tokens": 64}
    world = ModelWorld(runner, adapters, vocab_size=runner.model.vocab_size, **config)
    for length, (name, adapter) in enumerate(requests.items(), 3):
        world.add(name, tuple(range(10 * length, 11 * length)), 4, adapter=adapter)
    world.run()
    return world.tokens


@pytest.mark.parametrize(
    ("requests", "size"),
    [
        ({"a": None}, 1),
        (dict.fromkeys("abc"), 4),
        ({"a": "first", "b": "first", "c": "second", "d": None}, 4),
    ],
)
def test_a_graph_gives_the_bits_that_a_step_without_one_gives(
    model: LoadedModel,
    adapters: Adapters,
    runner: WatchedRunner,
    requests: Mapping[str, str | None],
    size: int,
) -> None:
    plain = WatchedRunner(model)
    expected = generate(plain, adapters, requests)
    assert generate(runner, adapters, requests) == expected
    assert (plain.sizes, runner.sizes) == ([None] * 4, [None, size, size, size])
    for logits, others in zip(runner.seen, plain.seen, strict=True):
        if len(requests) == size:
            assert torch.equal(logits, others)
        else:  # torch may multiply matrices of more rows in another way
            torch.testing.assert_close(logits, others, rtol=1e-5, atol=1e-5)


def test_rows_that_are_not_used_write_nowhere(runner: WatchedRunner) -> None:
    generate(runner, {}, dict.fromkeys("abc"))
    assert runner.sizes == [None, 4, 4, 4]
    for cache in runner._caches:
        num_written = int(cache.keys.nan_to_num().flatten(2).any(-1).sum())
        assert num_written == (3 + 4 + 5) + 3 * 3
        assert not cache.keys[-1].any(), "the null block is written"


@pytest.mark.parametrize(
    "requests",
    [{"a": "large"}, {"a": "gains"}, dict.fromkeys("abcde")],
    ids=["rank", "gains", "rows"],
)
def test_what_does_not_fit_runs_without_a_graph(
    runner: WatchedRunner, adapters: Adapters, requests: Mapping[str, str | None]
) -> None:
    generate(runner, adapters, requests)
    assert set(runner.sizes) == {None}


def test_steps_are_counted_by_what_computed_them(runner: WatchedRunner) -> None:
    registry = CollectorRegistry()
    registry.register(GraphCollector(runner.num_steps))
    generate(runner, {}, dict.fromkeys("a"))
    counts = {
        way: registry.get_sample_value("loraplex_steps_total", {"way": way})
        for way in ("graph", "launched")
    }
    assert counts == {"graph": 3, "launched": 1}


def test_graphs_that_were_recorded_before_one_failed_are_used(model: LoadedModel) -> None:
    left = [None] * 3

    def record_some(compute: Callable[[], Tensor]) -> Recorded:
        if not left:
            raise RuntimeError("out of memory")
        left.pop()
        return record(compute)

    runner = WatchedRunner(model)
    use_recorded(runner, record_some, BUCKETS)
    assert "with graphs" in runner.kernels
    generate(runner, {}, dict.fromkeys("a"))
    assert runner.sizes == [None, 1, 1, 1]
    assert "no graphs" in WatchedRunner(model).kernels


class NoWaiting(TorchDispatchMode):
    """Fails where the host would wait for the device, which no graph can hold."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.name()
        assert not any(word in name for word in ("_local_scalar_dense", "nonzero", "item")), name
        return func(*args, **(kwargs or {}))


class AttendsNothing(PagedTorch):
    """Triton's kernels are not seen by torch."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
        return q + v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)


def test_the_forward_pass_of_a_graph_waits_for_nothing(model: LoadedModel) -> None:
    runner = WatchedRunner(model)
    attention = AttendsNothing(PagedLayout(BLOCK_SIZE, CPU))
    runner._layout = replace(runner._layout, attention=attention)
    num_recorded = 0

    def record_watched(compute: Callable[[], Tensor]) -> Recorded:
        nonlocal num_recorded
        with NoWaiting():
            logits = compute()
        num_recorded += 1
        return Recorded(lambda: None, logits)

    list(runner.record_graphs(record_watched, BUCKETS))
    assert num_recorded == 2 * len(BUCKETS)
    with NoWaiting(), pytest.raises(AssertionError, match="_local_scalar_dense"):
        torch.ones(1).item()


def test_contexts_beyond_a_graph_run_without_it(runner: WatchedRunner, adapters: Adapters) -> None:
    graphs = runner._builder.graphs
    assert graphs is not None
    runner.use_graphs(replace(graphs, max_keys=5))
    generate(runner, adapters, {"a": None})
    assert runner.sizes == [None, 1, 1, None]
