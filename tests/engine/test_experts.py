"""Experts and routers compute each row as transformers and PEFT do for its request alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests import tiny_models
from tests.engine.alone import NUM_TOKENS, alone_with_margin, assert_equals, load_adapters
from tests.engine.architectures import ARCHITECTURES, EXPERTS
from tests.engine.packed_greedy import Request, generate
from torch import Tensor, nn
from transformers import GptOssConfig, JetMoeConfig, OlmoeConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.errors import CheckpointInvalid
from loraplex.adapters.experts import ExpertPairs
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.config import ModelConfig
from loraplex.engine.experts import AdaptedParameters, ExpertRows, is_routed, route
from loraplex.engine.lora_rows import AdapterRows, LoraRows
from loraplex.engine.model import LoadedModel, load_model
from loraplex.engine.parameter_probe import ParameterProbe
from loraplex.engine.runner import ModelRunner
from loraplex.kernels.cpu_kernels import CpuKernels

NUM_BLOCKS = 100
CONFIGS = {
    **{name: each.config for name, each in ARCHITECTURES.items() if each.parameters},
    "OLMoE": OlmoeConfig(**tiny_models.sizes(num_experts=4, num_experts_per_tok=2)),
}
BOTH, ROUTER = [*EXPERTS[:2]], EXPERTS[2]
ADAPTERS = {
    "experts": {"r": 4, "lora_alpha": 6, "target_modules": [], "target_parameters": BOTH},
    "experts and attention": {
        "r": 3,
        "lora_alpha": 5,
        "target_modules": ["q_proj", "o_proj"],
        "target_parameters": BOTH,
        "rank_pattern": {"experts.down_proj": 5},
        "alpha_pattern": {r"layers\.1\.mlp\.experts\.gate_up_proj": 9},
    },
    "one of two": {
        "r": 2,
        "lora_alpha": 3,
        "use_rslora": True,
        "target_modules": ["v_proj"],
        "target_parameters": BOTH[1:],
    },
    # PEFT writes these as parameters too.
    "all linear": {"r": 2, "lora_alpha": 3, "target_modules": "all-linear"},
    "router and attention by name": {
        "r": 3,
        "lora_alpha": 2,
        "target_modules": ["q_proj", "gate"],
    },
    "routers": {
        "r": 2,
        "lora_alpha": 2,
        "target_modules": [],
        "target_parameters": [f"mlp.{ROUTER}"],
    },
}


@pytest.fixture(scope="session", params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return tiny_models.save_model(folder, CONFIGS[request.param])


@pytest.fixture(scope="session")
def adapter_folders(folder: Path) -> dict[str, Path]:
    return {
        name: tiny_models.save_adapter(folder.parent / name, folder, seed, **config)
        for seed, (name, config) in enumerate(ADAPTERS.items())
    }


def load(folder: Path, kernels: CpuKernels | None = None) -> LoadedModel:
    return load_model(ModelConfig(folder, "tiny", "cpu", "float32"), kernels)


def test_experts_and_routers_of_a_mixed_batch_equal_peft_alone(
    folder: Path, adapter_folders: dict[str, Path], tmp_path: Path, kernels: CpuKernels | None
) -> None:
    runner = ModelRunner(load(folder, kernels), NUM_BLOCKS, 4)
    loaded = load_adapters(runner.model, adapter_folders, AdapterStore(tmp_path))
    loaded = {key: runner.locate(weights) for key, weights in loaded.items()}
    alone, requests = {}, []
    for name, path in {**adapter_folders, "base": None}.items():
        model = tiny_models.load_reference(folder, path)
        adapter = None if path is None else AdapterKey("tenant", name)
        for length in (5, 9):
            request_id = f"{name}, {length} tokens"
            alone[request_id] = alone_with_margin(model, length)
            requests.append(Request(request_id, alone[request_id].prompt, adapter))
    generate(
        runner,
        requests,
        NUM_TOKENS,
        chunk_size=6,
        block_size=4,
        num_blocks=NUM_BLOCKS,
        adapters=loaded,
    )
    for request in requests:
        assert_equals(request, alone[request.request_id])


def test_an_adapter_takes_the_bytes_of_its_experts(
    folder: Path, adapter_folders: dict[str, Path], tmp_path: Path
) -> None:
    model = load(folder)
    loaded = load_adapters(model, adapter_folders, AdapterStore(tmp_path))
    for weights in loaded.values():
        parts = [(p.a, p.b) for p in (*weights.pairs.values(), *weights.parameters.values())]
        assert weights.num_bytes == sum(a.nbytes + b.nbytes for a, b in parts)


def pairs_like(shape: tuple[int, int, int], rank: int, scale: float) -> ExpertPairs:
    experts, out, width = shape
    return ExpertPairs(torch.randn(experts, rank, width), torch.randn(experts, out, rank), scale)


def changed(pairs: dict[str, ExpertPairs], base: nn.Module, path: str) -> dict[str, Tensor]:
    """All matrices whole."""
    names = [name.rpartition(".")[2] for name in pairs]
    return {name: base.get_parameter(name) + pairs[f"{path}.{name}"].delta() for name in names}


@pytest.mark.parametrize("is_routed", [True, False], ids=["low rank", "whole matrices"])
@torch.inference_mode()
def test_base_rows_beside_adapters_on_experts_keep_every_bit(folder: Path, is_routed: bool) -> None:
    model, path = load(folder), "model.layers.1.mlp.experts"
    experts = model.network.get_submodule(path)
    assert isinstance(experts, AdaptedParameters)
    assert experts.is_routed
    experts.is_routed = is_routed
    torch.manual_seed(0)
    x = torch.randn(9, 64)
    chosen = torch.rand(9, 4).topk(2).indices
    weights = torch.rand(9, 2)
    up, down = (
        model.shapes.parameters[f"{path}.gate_up_proj"],
        model.shapes.parameters[f"{path}.down_proj"],
    )
    both = {
        f"{path}.gate_up_proj": pairs_like(up, 3, 0.4),
        f"{path}.down_proj": pairs_like(down, 2, 0.3),
    }
    one = {f"{path}.down_proj": pairs_like(down, 5, 0.2)}
    rows = [
        AdapterRows(3, 5, AdapterWeights(0, {}, parameters=both)),
        AdapterRows(5, 6, AdapterWeights(0, {})),
        AdapterRows(6, 9, AdapterWeights(0, {}, parameters=one)),
    ]
    with model.lora.step(LoraRows.of(9, rows), LoraRows.of(0, ())):
        found = experts(x, chosen, weights)
    base = experts.base
    plain = [0, 1, 2, 5] if is_routed else [0, 1, 2]
    assert torch.equal(found[plain], base(x[plain], chosen[plain], weights[plain]))
    for start, end, pairs in ((3, 5, both), (6, 9, one)):
        parts = (x[start:end], chosen[start:end], weights[start:end])
        expected = torch.func.functional_call(base, changed(pairs, base, path), parts)
        assert torch.allclose(found[start:end], expected, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(found[start:end], base(*parts), rtol=1e-2, atol=1e-2)
    assert torch.equal(experts(x, chosen, weights), base(x, chosen, weights))


class Owner(nn.Module):
    """A model that is nothing but experts."""

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.experts(*inputs)


def gpt_oss_experts() -> nn.Module:
    """Matrices that lie as [in, out], biases, a gate of their own."""
    torch.manual_seed(0)
    config = GptOssConfig(
        hidden_size=24, intermediate_size=20, num_local_experts=4, num_experts_per_tok=2
    )
    config._experts_implementation = "eager"
    experts = GptOssExperts(config)
    for parameter in experts.parameters():
        parameter.data = 0.3 * torch.randn_like(parameter)
    return experts.eval().requires_grad_(requires_grad=False)


@torch.inference_mode()
def test_transposed_experts_with_biases_equal_peft() -> None:
    experts = gpt_oss_experts()
    assert is_routed(experts)
    x, chosen, weights = torch.randn(6, 24), torch.rand(6, 4).topk(2).indices, torch.rand(6, 2)
    inputs = (x, chosen, weights)
    base = experts(*inputs)
    config = LoraConfig(r=3, lora_alpha=4, target_modules=[], target_parameters=BOTH)
    with torch.inference_mode(mode=False):
        peft = get_peft_model(Owner(gpt_oss_experts()), config)
    pairs = {}
    for name, parameter in peft.named_parameters():
        if ".lora_" in name:
            parameter.data = torch.randn_like(parameter)
    outer = peft.base_model.model.experts
    for wrapper in (outer, outer.base_layer):
        a, b = wrapper.lora_A["default"].weight, wrapper.lora_B["default"].weight
        pairs[wrapper.parameter_name] = ExpertPairs.of(a, b, 3, 4 / 3)
    expected = peft(*inputs)
    assert not torch.allclose(expected[2:], base[2:], rtol=0.1)
    found = route(experts, inputs, [ExpertRows(2, 6, pairs)])
    assert torch.allclose(found[2:], expected[2:], rtol=1e-4, atol=1e-4)
    assert torch.allclose(found[:2], base[:2], rtol=1e-5, atol=1e-5)


def test_experts_whose_gate_is_another_are_not_taken_for_known_ones() -> None:
    experts = gpt_oss_experts()
    experts.forward = lambda x, *_: 2 * x  # type: ignore[method-assign]  # another computation
    assert not is_routed(experts)


def test_experts_that_are_not_given_rows_as_they_come_are_refused(tmp_path: Path) -> None:
    config = JetMoeConfig(
        **tiny_models.sizes(kv_channels=16, num_local_experts=4, num_experts_per_tok=2)
    )
    folder = tiny_models.save_model(tmp_path / "model", config)
    adapter = tiny_models.save_adapter(
        tmp_path / "adapter",
        folder,
        r=2,
        target_modules=[],
        target_parameters=["mlp.input_linear.weight"],
    )
    with pytest.raises(CheckpointInvalid) as refused:
        inspect(adapter, load(folder).shapes)
    text = str(refused.value)
    assert "mlp.input_linear.weight" in text
    assert "no parameter of the base model that holds experts" in text


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_half_precision_the_same_parameters_take_adapters(folder: Path, dtype: str) -> None:
    model = load_model(ModelConfig(folder, "tiny", "cpu", dtype))
    assert model.shapes.parameters == load(folder).shapes.parameters
    adopted = [m for m in model.network.modules() if isinstance(m, AdaptedParameters)]
    assert sum(m.is_routed for m in adopted) == 3


class Watched(nn.Module):
    """A model of one module, called as `call` says."""

    def __init__(self, inner: nn.Module, call: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, x: Tensor) -> object:
        return self.call(self.inner, x)


class Router(nn.Module):
    """Scores, which may be divided by their mean over rows."""

    def __init__(self, *, is_normalised: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8))
        self.is_normalised = is_normalised

    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ self.weight.T).exp()
        return scores / scores.mean(0) if self.is_normalised else scores


@pytest.mark.parametrize(
    ("is_normalised", "call", "served"),
    [
        (False, lambda inner, x: inner(x), True),
        (True, lambda inner, x: inner(x), False),
        (False, lambda inner, x: (inner(x), inner(x)), False),
        (False, lambda inner, x: inner(x[:5]), False),
        (False, lambda inner, x: inner(x=x), False),
        (False, lambda inner, x: inner(x[None]), False),
        (False, lambda _, x: x, False),
    ],
    ids=["by row", "rows together", "twice", "other rows", "by name", "another shape", "never"],
)
def test_only_modules_that_compute_each_row_by_itself_take_adapters(
    is_normalised: bool, call: Callable[[nn.Module, Tensor], object], served: bool
) -> None:
    torch.manual_seed(0)
    network = Watched(Router(is_normalised=is_normalised), call)
    probe = ParameterProbe(network, (), 7)
    network(torch.randn(7, 8))
    assert probe.finish() == ({"inner.weight": (4, 8)} if served else {})
