"""Linear layers that see one input are computed together, each row with its adapter."""

from types import MappingProxyType

import pytest
import torch
from tests.engine.test_adapted import ROWS
from torch import Tensor, nn

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.effects import LoraPair, ModuleEffect
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.adapted import adopt
from loraplex.engine.gate import RowProbe
from loraplex.engine.linear_group import are_alike, columns_of_wider
from loraplex.engine.lora_batch import LoraBatch
from loraplex.engine.lora_linear import LoraLinear
from loraplex.engine.lora_rows import AdapterRows, LoraRows
from loraplex.kernels.cpu_kernels import CpuKernels

WIDTH, HEAD_ROWS = 24, 2
SHAPES = {  # in an order that is not that of the calls
    "head": (11, WIDTH),
    "k": (8, WIDTH),
    "o": (WIDTH, 40),
    "q": (24, WIDTH),
    "v": (8, WIDTH),
}


class Attention(nn.Module):
    """Queries, keys and values of one input, but for what is changed."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        self.change = change
        for path, (num_out, num_in) in SHAPES.items():
            setattr(self, path, nn.Linear(num_in, num_out, bias=path in "qv"))

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        q = self.q(x)
        if self.change == "in place":
            x.mul_(2)
        k = self.k(x + 1 if self.change == "keys" else x)
        v = self.v(x)
        if self.change == "view":
            v = v.view(-1)[: v.numel()].view(v.shape)
        return self.head((x + self.o(torch.cat((q, k, v), -1)))[rows])


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(ROWS, WIDTH), torch.tensor([2, 5])


def groups_of(network: nn.Module) -> tuple[tuple[str, ...], ...]:
    probe = RowProbe(network, SHAPES, ROWS, ("head", HEAD_ROWS))
    with torch.inference_mode():
        network(*inputs())
    probe.finish()
    return probe.shared_inputs(SHAPES)


@pytest.mark.parametrize(
    ("change", "groups"),
    [("", (("q", "k", "v"),)), ("keys", ()), ("in place", (("k", "v"),))],
    ids=["one input", "another for the keys", "changed in place after the first"],
)
def test_layers_that_are_called_one_after_the_other_with_one_input_are_found(
    change: str, groups: tuple[tuple[str, ...], ...]
) -> None:
    assert groups_of(Attention(change)) == groups


def test_who_needs_an_output_in_one_piece_is_found_out() -> None:
    plain, viewing = Attention(), Attention("view")
    with columns_of_wider([plain.q, plain.k, plain.v]):
        plain(*inputs())
    with columns_of_wider([viewing.v]), pytest.raises(RuntimeError, match="view"):
        viewing(*inputs())


def adopted(change: str = "") -> tuple[Attention, LoraBatch]:
    torch.manual_seed(0)
    network = Attention(change)
    shapes = BaseShapes(SHAPES, {}, frozenset({"head"}), "tokens")
    return network, adopt(network, shapes, "head", groups_of(Attention()))


def weights_of(ranks: dict[str, int], effects: dict[str, ModuleEffect]) -> AdapterWeights:
    pairs = {
        path: LoraPair(
            torch.randn(rank, SHAPES[path][1]), torch.randn(SHAPES[path][0], rank) / rank, 0.5
        )
        for path, rank in ranks.items()
    }
    return AdapterWeights(0, MappingProxyType(pairs), MappingProxyType(effects))


def adapters() -> list[AdapterWeights]:
    """On values alone, at ranks of their own, with DoRA on keys alone, with a weight of its own."""
    torch.manual_seed(3)
    gain = {"k": ModuleEffect(gain=torch.rand(8) + 0.5)}
    own = {"v": ModuleEffect(weight=torch.randn(8, WIDTH), offset=torch.randn(8))}
    return [
        weights_of({"v": 5}, {}),
        weights_of({"q": 1, "k": 7, "v": 16, "o": 3}, {}),
        weights_of({"k": 4}, gain),
        weights_of({"q": 2, "v": 3}, own),
    ]


def alone(network: Attention, weights: AdapterWeights, row: int) -> Tensor:
    """What plain layers make of one row."""
    x = inputs()[0][row]

    def linear(path: str, x: Tensor) -> Tensor:
        base = network.get_submodule(path)
        effect = weights.effects.get(path, ModuleEffect())
        if effect.weight is not None:
            y = effect.weight @ x
        else:
            y = base.weight @ x if base.bias is None else base.weight @ x + base.bias
            if path in weights.pairs:
                pair = weights.pairs[path]
                y = y + pair.scale * (pair.b @ (pair.a @ x))
        y = y if effect.gain is None else y * effect.gain
        return y if effect.offset is None else y + effect.offset

    return x + linear("o", torch.cat([linear(path, x) for path in "qkv"]))


@pytest.mark.parametrize("is_compiled", [False, True], ids=["torch", "compiled"])
@torch.inference_mode()
def test_each_row_has_its_adapters_columns(is_compiled: bool, compiled_kernels: CpuKernels) -> None:
    torch.manual_seed(0)
    plain = Attention()
    network, batch = adopted()
    x, _ = inputs()
    found = adapters()
    if is_compiled:
        located = [
            batch.locate(each, torch.float32, torch.device("cpu"), on_cpu=True) for each in found
        ]
    else:
        located = found
    ranges = [AdapterRows(row + 1, row + 2, each) for row, each in enumerate(located)]
    kernel = compiled_kernels.lora if is_compiled else None
    body = LoraRows.of(ROWS, ranges, kernel)
    with batch.step(body, LoraRows.of(HEAD_ROWS, [], kernel)):
        hidden = x + network.o(torch.cat([network.q(x), network.k(x), network.v(x)], -1))
    nothing = weights_of({}, {})
    for row, weights in enumerate([nothing, *found, nothing, nothing]):
        expected = alone(plain, weights, row)
        torch.testing.assert_close(hidden[row], expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_layer_that_gets_another_tensor_than_the_first_computes_its_own() -> None:
    network, _ = adopted("keys")
    torch.manual_seed(0)
    expected = Attention("keys")(*inputs())
    torch.testing.assert_close(network(*inputs()), expected)


@torch.inference_mode()
def test_what_was_computed_for_layers_that_are_not_called_is_given_up_after_the_step() -> None:
    network, batch = adopted()
    assert isinstance(network.q, LoraLinear)
    group = network.q.group
    assert group is network.k.group is network.v.group
    x, _ = inputs()
    with batch.step(LoraRows(ROWS, ()), LoraRows(HEAD_ROWS, ())):
        network.q(x)
        assert group.held is not None
        assert group.held[0] is x
    assert group.held is None
    network.q(x)
    network.v(x)
    assert group.held is None


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_small_logits_that_differ_are_not_alike(size: float) -> None:
    logits = size * inputs()[0]
    assert are_alike(logits * 1.001, logits)
    assert not are_alike(logits * 1.1, logits)
