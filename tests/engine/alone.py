"""What transformers and PEFT compute for one request alone: what a packed batch must equal."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.engine.packed_greedy import Request
from torch import Tensor, nn

from loraplex.adapters import placement
from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.model import LoadedModel

NUM_TOKENS = 5
MIN_MARGIN = 1e-4  # between the two largest logits: below it float32 may choose either
RTOL = 1e-4  # of the largest logit


@dataclass
class Alone:
    """A prompt, and its greedy continuation where it is the only one."""

    prompt: tuple[int, ...]
    tokens: list[int]
    logits: Tensor

    @property
    def margin(self) -> float:
        largest = self.logits.topk(2).values
        return float((largest[:, 0] - largest[:, 1]).min())


@torch.no_grad()
def generate_alone(model: nn.Module, prompt: tuple[int, ...]) -> Alone:
    """The whole sequence anew for each token, no cache."""
    tokens: list[int] = []
    logits: list[Tensor] = []
    for _ in range(NUM_TOKENS):
        input_ids = torch.tensor([[*prompt, *tokens]])
        logits.append(model(input_ids=input_ids, use_cache=False).logits[0, -1].float())
        tokens.append(int(logits[-1].argmax()))
    return Alone(prompt, tokens, torch.stack(logits))


def alone_with_margin(model: nn.Module, length: int, last: tuple[int, ...] = ()) -> Alone:
    """The first random prompt of this length whose continuation rounding cannot change; ``last``
    comes after it."""
    generator = torch.Generator().manual_seed(length)
    while True:
        prompt = tuple(torch.randint(2, 320, (length,), generator=generator).tolist())
        alone = generate_alone(model, (*prompt, *last))
        if alone.margin > MIN_MARGIN:
            return alone


def assert_equals(request: Request, alone: Alone) -> None:
    assert request.tokens == alone.tokens, request.request_id
    assert relative_error(request, alone) < RTOL, request.request_id


def relative_error(request: Request, alone: Alone) -> float:
    """Largest difference of logits over the largest logit, as far as both saw the same tokens."""
    pairs = zip(request.tokens, alone.tokens, strict=True)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(alone.tokens) - 1) + 1
    expected = alone.logits[:same]
    found = torch.stack(request.logits[:same]).cpu()
    return float((found - expected).abs().max() / expected.abs().max())


def load_adapters(
    model: LoadedModel, adapter_folders: Mapping[str, Path], store: AdapterStore
) -> dict[AdapterKey, AdapterWeights]:
    """Through validation and the store, as an upload goes; keyed by the adapter's name."""
    loaded = {}
    for name, folder in adapter_folders.items():
        checkpoint = inspect(folder, model.shapes)
        store.put(checkpoint)
        loaded[AdapterKey("tenant", name)] = placement.load(
            store,
            checkpoint.digest,
            model.shapes,
            model.weights,
            dtype=model.dtype,
            device=model.device,
        )
    return loaded
