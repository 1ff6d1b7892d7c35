"""One step: tokens, failures that stay with their request, and a base that adapters leave alone."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from tests import tiny_models
from tests.engine.packed_greedy import GREEDY, plan_of
from torch import Tensor

from loraplex.adapters.effects import LoraPair
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.config import ModelConfig
from loraplex.engine.lora_linear import LoraLinear
from loraplex.engine.model import LoadedModel, load_model
from loraplex.engine.plan import Chunk
from loraplex.engine.runner import ModelRunner, kv_bytes_per_block
from loraplex.kernels.linear import Packer

KEY = AdapterKey("tenant", "adapter")
Q_PROJ = "model.layers.0.self_attn.q_proj"
V_PROJ = "model.layers.0.self_attn.v_proj"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_model(tmp_path_factory.mktemp("model"), tiny_models.qwen3_config())


@pytest.fixture
def model(folder: Path) -> LoadedModel:
    return load_model(ModelConfig(folder, "tiny", "cpu", "float32"))


@pytest.fixture
def runner(model: LoadedModel) -> ModelRunner:
    return ModelRunner(model, num_blocks=8, block_size=4)


def chunk(
    name: str, block: int, adapter: AdapterKey | None = None, *, samples: bool = True
) -> Chunk:
    return Chunk(name, adapter, (5, 6, 7), 0, (block,), GREEDY if samples else None)


def adapter(path: str, out_features: int, value: float) -> Mapping[AdapterKey, AdapterWeights]:
    pair = LoraPair(torch.full((2, 64), value), torch.full((out_features, 2), value), 1.0)
    return {KEY: AdapterWeights(num_bytes=0, pairs=MappingProxyType({path: pair}))}


def test_each_chunk_that_samples_gets_a_token(runner: ModelRunner) -> None:
    plan = plan_of([chunk("goes on", 0, samples=False), chunk("ends", 1)])
    output = runner.run(runner.build(plan, {}))
    assert plan.sampled_keys == ("ends",)
    assert (len(output.token_ids), output.failures) == (1, {})


def test_a_step_in_which_nothing_samples_yields_nothing(runner: ModelRunner) -> None:
    output = runner.run(runner.build(plan_of([chunk("goes on", 0, samples=False)]), {}))
    assert (len(output.token_ids), output.failures) == (0, {})


def test_numbers_that_are_not_finite_fail_their_request_alone(runner: ModelRunner) -> None:
    alone = runner.run(runner.build(plan_of([chunk("base", 0)]), {}))
    plan = plan_of([chunk("base", 1), chunk("broken", 2, KEY)])
    output = runner.run(runner.build(plan, adapter(V_PROJ, 32, float("inf"))))
    assert plan.sampled_keys == ("base", "broken")
    assert output.token_ids[0] == alone.token_ids[0]
    assert output.failures.keys() == {"broken"}
    assert "not finite" in output.failures["broken"]


def test_the_blocks_of_a_failed_request_harm_nobody_after_it(runner: ModelRunner) -> None:
    (expected,) = runner.run(runner.build(plan_of([chunk("next", 0)]), {})).token_ids
    broken = plan_of([chunk("broken", 0, KEY)])
    runner.run(runner.build(broken, adapter(V_PROJ, 32, float("inf"))))
    decode = Chunk("next", None, (7,), 2, (0,), GREEDY)
    prompt = Chunk("next", None, (5, 6), 0, (0,), None)
    runner.run(runner.build(plan_of([prompt]), {}))
    beside = Chunk("longer", None, (1,), 6, (3, 4), GREEDY)  # pads the decode
    assert runner.run(runner.build(plan_of([decode, beside]), {})).token_ids[0] == expected


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.0), ("float32", 1e-5)])
def test_without_adapters_a_step_is_that_of_the_plain_layers(
    folder: Path, dtype: str, tolerance: float
) -> None:
    model = load_model(ModelConfig(folder, "tiny", "cpu", dtype))
    runner = ModelRunner(model, num_blocks=8, block_size=4)
    batch = runner.build(plan_of([chunk("base", 0)]), {})
    logits = runner.logits(batch)
    plain = tiny_models.load_reference(folder).to(model.dtype)
    for path in model.shapes.linears:
        parent, _, name = path.rpartition(".")
        setattr(model.network.get_submodule(parent), name, plain.get_submodule(path))
    torch.testing.assert_close(runner.logits(batch), logits, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("is_packed", [False, True])
def test_linear_layers_keep_their_parameters_and_ties_but_for_packed_ones(
    folder: Path, *, is_packed: bool
) -> None:
    def choose(packers: Sequence[Packer], _: Sequence[Tensor]) -> Packer:
        return packers[0 if is_packed else -1]

    network = load_model(ModelConfig(folder, "tiny", "cpu", "float32"), choose=choose).network
    layer = network.get_submodule(Q_PROJ)
    assert isinstance(layer, LoraLinear)
    assert layer.weight.is_meta == layer.group.dense.is_packed == is_packed
    assert (network.lm_head.weight is network.model.embed_tokens.weight) != is_packed
    plain = tiny_models.load_reference(folder)
    assert network.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(
        network.model.embed_tokens.weight, plain.model.embed_tokens.weight.to(layer.weight.dtype)
    )


def test_the_weights_of_an_adapter_are_free_once_its_step_is_over(runner: ModelRunner) -> None:
    adapters = adapter(Q_PROJ, 64, 0.5)
    weights = weakref.ref(adapters[KEY].pairs[Q_PROJ].a)
    runner.run(runner.build(plan_of([chunk("red", 0, KEY)]), adapters))
    assert weights() is not None
    del adapters
    assert weights() is None


def test_a_step_that_fails_leaves_the_next_as_it_would_be(runner: ModelRunner) -> None:
    base = runner.build(plan_of([chunk("base", 0)]), {})
    expected = runner.logits(base)
    misshapen = runner.build(plan_of([chunk("broken", 1, KEY)]), adapter(Q_PROJ, 63, 0.5))
    with pytest.raises(RuntimeError, match="size"):
        runner.run(misshapen)
    assert torch.equal(runner.logits(base), expected)


def test_an_adapter_on_a_layer_that_sees_other_rows_is_an_error(runner: ModelRunner) -> None:
    batch = runner.build(plan_of([chunk("red", 0, KEY)]), adapter(Q_PROJ, 64, 0.5))
    unlike = replace(batch, body=replace(batch.body, num_rows=2))
    with pytest.raises(RuntimeError, match="q_proj got 3 rows, not 2"):
        runner.run(unlike)


def test_a_kv_block_holds_keys_and_values_of_all_layers(model: LoadedModel) -> None:
    runner = ModelRunner(model, num_blocks=8, block_size=4)
    pools = [tensor for cache in runner._caches for tensor in cache]
    per_block = sum(tensor[0].nbytes for tensor in pools)
    assert kv_bytes_per_block(model, 4) == per_block == 3 * 4 * 2 * 2 * 16 * 4
