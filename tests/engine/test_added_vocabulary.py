"""Tokens that only an adapter has, from the request to the choice's end."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests import tiny_models
from tests.engine.alone import load_adapters
from tests.engine.fidelity_cases import NUM_TOKENS
from tests.engine.model_world import ModelWorld
from tests.engine.trained import save_trained

from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.config import ModelConfig
from loraplex.engine.errors import RequestRefused
from loraplex.engine.model import load_model
from loraplex.engine.protocol import Sampling, Submit
from loraplex.engine.runner import ModelRunner

OWN = NUM_TOKENS + 3
KEY = AdapterKey("tenant", "wider")
WANTED = {NUM_TOKENS + 1: 100.0}
"""A bias that no logit outweighs."""


class World(ModelWorld):
    """One whose base model has as many tokens as it has."""

    def __init__(self, runner: ModelRunner, adapters: Mapping[AdapterKey, AdapterWeights]) -> None:
        super().__init__(runner, adapters, vocab_size=NUM_TOKENS)

    def ask(
        self, request_id: str, adapter: str | None, prompt: tuple[int, ...], **sampling
    ) -> None:
        submit = Submit(
            request_id=request_id,
            tenant="tenant",
            adapter=adapter,
            prompt=prompt,
            sampling=Sampling(**{"max_tokens": 4, "temperature": 0.0, "seed": 0} | sampling),
        )
        if adapter is None:
            self.scheduler.add(submit, 0.0)
        else:
            self.scheduler.add(submit, 0.0, 1, OWN)


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tiny_models.save_model(tmp_path / "model", tiny_models.qwen3_config())
    adapter = save_trained(
        tmp_path / "adapter", folder, 0, num_tokens=OWN, r=4, target_modules=["q_proj"]
    )
    model = load_model(ModelConfig(folder, "tiny", "cpu", "float32"))
    loaded = load_adapters(model, {"wider": adapter}, AdapterStore(tmp_path / "store"))
    return World(ModelRunner(model, 16, 4), loaded)


def test_they_are_read_biased_drawn_and_counted_like_any_other(world: World) -> None:
    bias = tuple(WANTED.items())
    world.ask("greedy", "wider", (5, OWN - 1), logit_bias=bias)
    world.ask("drawn", "wider", (5, 7), logit_bias=bias, temperature=1.0, top_k=3, top_p=0.9)
    world.ask("penalised", "wider", (5, 7), frequency_penalty=1.0, repetition_penalty=1.1)
    world.ask("base", None, (5, 7))
    world.run()
    assert world.tokens["greedy"] == [NUM_TOKENS + 1] * 4
    assert world.tokens["drawn"] == [NUM_TOKENS + 1] * 4
    assert max(world.tokens["base"]) < NUM_TOKENS


def test_one_can_end_a_choice_but_not_before_its_least_length(world: World) -> None:
    bias, stop = tuple(WANTED.items()), (NUM_TOKENS + 1,)
    world.ask("ended", "wider", (5, 7), logit_bias=bias, stop_token_ids=stop)
    world.ask("later", "wider", (5, 7), logit_bias=bias, stop_token_ids=stop, min_tokens=2)
    world.run()
    assert world.finished["ended"].reason == "stop"
    assert world.finished["ended"].usage.completion_tokens == 1
    assert world.finished["later"].usage.completion_tokens == 3


def test_the_base_model_and_draws_know_none_of_them(world: World) -> None:
    world.ask("wider", "wider", (5, 7))
    world.ask("base", None, (5, 7), temperature=1.9, n=1, max_tokens=8)
    world.run()
    assert max(world.tokens["base"]) < NUM_TOKENS


@pytest.mark.parametrize(
    ("adapter", "beyond"), [(None, NUM_TOKENS), ("wider", OWN)], ids=["base", "adapter"]
)
def test_an_id_beyond_those_that_the_request_has_is_refused(
    world: World, adapter: str | None, beyond: int
) -> None:
    with pytest.raises(RequestRefused, match=f"0 to {beyond - 1}"):
        world.ask("a", adapter, (5, beyond))
    with pytest.raises(RequestRefused, match="stop_token_ids"):
        world.ask("a", adapter, (5,), stop_token_ids=(beyond,))
    with pytest.raises(RequestRefused, match="logit_bias"):
        world.ask("a", adapter, (5,), logit_bias=((beyond, 1.0),))
