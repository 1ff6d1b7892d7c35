"""Whatever PEFT's LoRA can do is served in mixed batches as PEFT computes it for one request alone.

The cases of one model run together, beside requests to the base model, once by each kernel.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from tests import tiny_models
from tests.engine.alone import Alone, alone_with_margin, assert_equals, load_adapters
from tests.engine.fidelity_cases import CASES, MODELS, NUM_TOKENS
from tests.engine.packed_greedy import Request
from tests.engine.served import RecordingRunner, serve
from tests.engine.trained import load_trained, save_trained

from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.effects import LoraPair, ModuleEffect
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.adapters.weights import AdapterWeights, read
from loraplex.engine.config import ModelConfig
from loraplex.engine.model import LoadedModel, load_model
from loraplex.kernels.cpu_kernels import CpuKernels

LENGTHS = (4, 9)
BASE = "base"


@dataclass(frozen=True)
class Trained:
    """A model, adapters on it, and what PEFT makes of prompts with each."""

    folder: Path
    adapters: dict[str, Path]
    alone: dict[str, list[Alone]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    return cache(lambda model: _train(model, tmp_path_factory.mktemp("trained")))


def _train(name: str, root: Path) -> Trained:
    folder = tiny_models.save_model(root / "model", MODELS[name])
    base = tiny_models.load_reference(folder)
    adapters = {}
    alone = {BASE: [alone_with_margin(base, length) for length in LENGTHS]}
    for seed, (field, case) in enumerate(CASES.items()):
        if case.model != name:
            continue
        options = {"num_tokens": case.num_tokens}
        adapters[field] = save_trained(root / str(seed), folder, seed, **case.config, **options)
        model = load_trained(adapters[field], folder, **options)
        # Tokens that were added stand in the prompt.
        added = tuple(range(NUM_TOKENS, case.num_tokens or 0))
        alone[field] = [alone_with_margin(model, length, added) for length in LENGTHS]
    return Trained(folder, adapters, alone)


@dataclass(frozen=True)
class Served:
    """What was served of one model: requests by case, and with parts of adapters overlooked."""

    requests: dict[str, list[Request]]
    overlooked: dict[str, list[Request]]
    adapters: dict[AdapterKey, AdapterWeights]
    model: LoadedModel
    store: AdapterStore


@pytest.fixture(scope="module", params=["torch", "compiled"])
def served(
    trained: Callable[[str], Trained],
    compiled_kernels: CpuKernels,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Served]:
    kernels = compiled_kernels if request.param == "compiled" else None
    return cache(lambda model: _serve(trained(model), kernels, tmp_path_factory.mktemp("store")))


def _serve(trained: Trained, kernels: CpuKernels | None, root: Path) -> Served:
    model = load_model(ModelConfig(trained.folder, "tiny", "cpu", "float32"), kernels)
    runner = RecordingRunner(model, 400, 4)
    store = AdapterStore(root)
    adapters = load_adapters(model, trained.adapters, store)
    requests: dict[str, list[Request]] = {}
    overlooked: dict[str, list[Request]] = {}
    for field, expected in trained.alone.items():
        key = None if field == BASE else AdapterKey("tenant", field)
        requests[field] = [Request(f"{field} {i}", e.prompt, key) for i, e in enumerate(expected)]
        if key is not None:
            wrong = AdapterKey("tenant", f"{field}, overlooked")
            adapters[wrong] = CASES[field].overlook(adapters[key])
            overlooked[field] = [
                Request(f"{field} {i}, overlooked", e.prompt, wrong) for i, e in enumerate(expected)
            ]
    located = {key: runner.locate(weights) for key, weights in adapters.items()}
    every = [r for group in (requests, overlooked) for rs in group.values() for r in rs]
    serve(runner, every, located)
    return Served(requests, overlooked, adapters, model, store)


def within_vocabulary(request: Request, alone: Alone) -> Request:
    """Without the tokens that others of the batch have, which must be impossible."""
    width = alone.logits.shape[1]
    assert all((row[width:] == -math.inf).all() for row in request.logits)
    return replace(request, logits=[row[:width] for row in request.logits])


@pytest.mark.parametrize("field", CASES)
def test_an_adapter_is_served_as_peft_computes_it(
    field: str, served: Callable[[str], Served], trained: Callable[[str], Trained]
) -> None:
    model = CASES[field].model
    found = served(model).requests[field]
    for request, alone in zip(found, trained(model).alone[field], strict=True):
        assert_equals(within_vocabulary(request, alone), alone)


@pytest.mark.parametrize("field", CASES)
def test_to_overlook_what_an_adapter_does_shows_in_the_output(
    field: str, served: Callable[[str], Served], trained: Callable[[str], Trained]
) -> None:
    model = CASES[field].model
    wrong = [request.tokens for request in served(model).overlooked[field]]
    assert wrong != [alone.tokens for alone in trained(model).alone[field]]


@pytest.mark.parametrize("model", MODELS)
def test_requests_to_the_base_model_are_served_as_ever_beside_them(
    model: str, served: Callable[[str], Served], trained: Callable[[str], Trained]
) -> None:
    for request, alone in zip(
        served(model).requests[BASE], trained(model).alone[BASE], strict=True
    ):
        assert_equals(within_vocabulary(request, alone), alone)


@pytest.mark.parametrize("field", CASES)
def test_the_bytes_of_an_adapter_are_those_of_all_its_tensors(
    field: str, served: Callable[[str], Served], trained: Callable[[str], Trained]
) -> None:
    found = served(CASES[field].model)
    placed = found.adapters[AdapterKey("tenant", field)]
    pairs, effects = placed.pairs.values(), placed.effects.values()
    assert placed.num_bytes == num_bytes(pairs, effects)
    folder = trained(CASES[field].model).adapters[field]
    digest = inspect(folder, found.model.shapes).digest
    on_host = read(found.store, digest, found.model.shapes, found.model.weights)
    modules = on_host.modules.values()
    pairs = [*on_host.pairs.values(), *(m.pair for m in modules if m.pair is not None)]
    effects = [module.effect for module in modules if module.effect is not None]
    assert on_host.num_bytes == num_bytes(pairs, effects)


def num_bytes(pairs: Iterable[LoraPair], effects: Iterable[ModuleEffect]) -> int:
    tensors = [tensor for pair in pairs for tensor in (pair.a, pair.b)]
    tensors += [tensor for effect in effects for tensor in effect.tensors()]
    return sum({id(tensor): tensor.nbytes for tensor in tensors}.values())
