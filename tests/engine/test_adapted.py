"""What of a network is taken over for adapters, and what is left alone."""

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.engine.adaptable import Adaptable
from loraplex.engine.adapted import AdoptedWeights, adopt, is_plain
from loraplex.engine.gate import RowProbe

ROWS, WIDTH, HEADS = 7, 8, 2


class Scaled(nn.Embedding):
    """As Gemma 3 has it."""

    embed_scale = 3.0

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  nn.Embedding's own name
        return super().forward(input) * self.embed_scale


class Shifted(nn.Embedding):
    """As OPT has it for positions: ids are not the rows of the table."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  nn.Embedding's own name
        return super().forward((input + 2).clamp(max=self.num_embeddings - 1))


class Network(nn.Module):
    """Modules of each kind, some of which see other rows than the step's."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = Scaled(11, WIDTH)
        self.positions = Shifted(11, WIDTH)
        self.unused = nn.Embedding(3, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 6), Conv1D(WIDTH, 6)
        self.norm = nn.LayerNorm(WIDTH)
        self.norm_of_heads = nn.LayerNorm(WIDTH // HEADS)
        self.head = nn.Linear(WIDTH, 11, bias=False)

    def forward(self, ids: Tensor, rows: Tensor) -> Tensor:
        hidden = self.tokens(ids) + self.positions(ids)
        hidden = self.norm(self.down(self.up(hidden)))
        heads = hidden.view(*hidden.shape[:-1], HEADS, -1)
        return self.head(self.norm_of_heads(heads).flatten(-2)[:, rows])


def run(network: nn.Module) -> Tensor:
    return network(torch.arange(ROWS)[None], torch.tensor([2, 5]))


def shapes_of(network: nn.Module) -> BaseShapes:
    adaptable = Adaptable.of(network)
    probe = RowProbe(network, adaptable.paths, ROWS, ("head", 2))
    run(network)
    seen = adaptable.among(probe.finish())
    return BaseShapes(
        seen.linears, seen.embeddings, frozenset({"head"}), "tokens", biases=seen.biases
    )


def test_modules_that_see_each_row_once_and_do_no_more_than_their_kind_are_found() -> None:
    shapes = shapes_of(Network())
    assert shapes.linears == {"down": (WIDTH, 6), "head": (11, WIDTH), "up": (6, WIDTH)}
    assert shapes.embeddings == {"tokens": (11, WIDTH)}
    assert shapes.biases == {"up": 6, "down": WIDTH, "norm": WIDTH}


@pytest.mark.parametrize(
    ("embedding", "plain"),
    [(nn.Embedding(5, 3), True), (Scaled(5, 3), True), (Shifted(5, 3), False)],
    ids=["table", "with a scale", "of other ids"],
)
def test_an_embedding_that_does_more_than_look_up_and_scale_is_left_alone(
    embedding: nn.Embedding, plain: bool
) -> None:
    assert is_plain(embedding) == plain


@torch.inference_mode()
def test_without_a_step_what_was_taken_over_computes_the_same_and_tells_its_weights() -> None:
    torch.manual_seed(0)
    network = Network()
    expected = run(network)
    kept = {path: weight.clone() for path, weight in network.named_parameters()}
    shapes = shapes_of(network)
    adopt(network, shapes, "head")
    torch.testing.assert_close(run(network), expected)
    weights = AdoptedWeights(network)
    for path in ("tokens", "up", "head"):
        assert torch.equal(weights.weight(path), kept[f"{path}.weight"])
    assert torch.equal(weights.weight("down"), kept["down.weight"].T)
    assert torch.equal(weights.bias("norm"), kept["norm.bias"])
    assert weights.bias("head") is None
    assert weights.is_transposed("down")
    assert not weights.is_transposed("up")
