"""Requests begin on adapters that are on their way."""

from tests.engine import build
from tests.engine.arriving_world import World
from tests.engine.simulated_runner import expected_output

from loraplex.adapters.spec import AdapterKey


def test_a_request_begins_on_the_layers_that_have_come() -> None:
    world = World()
    world.add("a", adapter="x")
    world.step()
    assert world.plan.loads == (AdapterKey("t", "x"),)
    assert not world.plan.cold
    world.come("x", 2)
    world.add("b", num_prompt_tokens=3)
    world.step()
    assert world.passes == {"a": (2, True)}
    assert world.tokens.keys() == {"b"}
    world.come("x", 4)
    world.step()
    assert world.tokens["a"] == expected_output(
        build.submit("a").prompt, AdapterKey("t", "x"), 1, build.EOS
    )
