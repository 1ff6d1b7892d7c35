"""The promises are not empty: each of four broken policies breaks them, and the bound is used.

Each scenario is a history in which one part of the policy matters. The real policy keeps its
promises in it, and the mutant without that part does not.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from tests.engine.fair_world import SETTINGS, Violation, World
from tests.engine.linear_costs import LinearCosts

from loraplex.engine.admission import AdmissionView, Blocked
from loraplex.engine.fair_admission import FairAdmission
from loraplex.engine.fair_queue import FairQueue
from loraplex.engine.fair_settings import FairSettings
from loraplex.engine.request import Request

TIGHT = replace(SETTINGS, max_open=2)
NO_LOADS = LinearCosts(load_ms=0.0)
NUM_ROUNDS = 600


class FreeLoads(FairQueue):
    def _load_ms(self, request: Request) -> float:
        return 0.0

    def _cost_ms(self, request: Request, view: AdmissionView) -> float:
        return super()._cost_ms(request, view) - view.load_ms(request)


class PassesOver(FairQueue):
    """Who lacks memory is passed over, like one who waits for a load, and blocks no refill."""

    _last_blocked: Request

    def blocked(self, request: Request, by: Blocked) -> None:
        super().blocked(request, by)
        self._last_blocked = request

    def _keeps_memory(self) -> bool:
        if super()._keeps_memory():
            tenant = self._last_blocked.submission.submit.tenant
            self._parked.add(tenant)
            self._share.stop_waiting(tenant)
        return False


class FreeRecompute(FairQueue):
    def makes_room(self, request: Request, victim: Request, recompute_ms: float) -> bool:
        return True


def with_main(queue: type[FairQueue]) -> Callable[[FairSettings], FairAdmission]:
    def policy(settings: FairSettings) -> FairAdmission:
        admission = FairAdmission(settings)
        admission._main = queue(settings)
        return admission

    return policy


def without_limit(settings: FairSettings) -> FairAdmission:
    return FairAdmission(replace(settings, max_skips=1_000_000))


def keep_waiting(world: World, tenant: str, count: int, **values: object) -> None:
    """Add requests until the tenant has so many that wait."""
    num_waiting = sum(r.submission.submit.tenant == tenant for r in world.waiting())
    for _ in range(count - num_waiting):
        world.add(tenant, **values)


def cold_adapters(world: World) -> None:
    """`a` needs another adapter each time, `b` none."""
    for i in range(NUM_ROUNDS):
        keep_waiting(world, "a", 3, adapter=f"x{i}")
        keep_waiting(world, "b", 3)
        world.step()


def large_beside_small(world: World) -> None:
    """`a` needs most of the blocks at once, `b` always holds some of them."""
    for _ in range(NUM_ROUNDS):
        keep_waiting(world, "a", 2, num_prompt_tokens=44, num_output_tokens=2)
        keep_waiting(world, "b", 3, num_prompt_tokens=5, num_output_tokens=12)
        world.step()


def warm_adapter_beside_cold(world: World) -> None:
    """One request for `cold`, and for `warm` as many as come."""
    world.add("a", adapter="warm")
    world.drain()
    world.add("a", adapter="cold")
    for _ in range(NUM_ROUNDS):
        keep_waiting(world, "a", 4, adapter="warm")
        keep_waiting(world, "b", 2)
        world.step()


def long_beside_costly(world: World) -> None:
    """`a`'s answers grow until `b`'s prompts, which are costly, must go, again and again."""
    for _ in range(NUM_ROUNDS):
        keep_waiting(world, "a", 2, num_prompt_tokens=12, num_output_tokens=3)
        keep_waiting(world, "b", 2, num_prompt_tokens=36, num_output_tokens=2)
        world.step()


@dataclass(frozen=True)
class Scenario:
    run: Callable[[World], None]
    mutant: Callable[[FairSettings], FairAdmission]
    says: str
    config: dict[str, object]


SCENARIOS = {
    "a load is charged": Scenario(
        cold_adapters,
        with_main(FreeLoads),
        "differ",
        {"settings": TIGHT, "costs": LinearCosts(load_ms=20.0)},
    ),
    "who is blocked blocks the refill": Scenario(
        large_beside_small,
        with_main(PassesOver),
        "differ",
        {
            "settings": replace(TIGHT, max_open=3, overdraft_ms=10.0),
            "costs": NO_LOADS,
            "num_blocks": 12,
        },
    ),
    "skips are limited": Scenario(
        warm_adapter_beside_cold, without_limit, "overtaken", {"settings": SETTINGS}
    ),
    "recompute is charged": Scenario(
        long_beside_costly,
        with_main(FreeRecompute),
        "differ",
        {
            "settings": TIGHT,
            "num_blocks": 12,
            "max_step_tokens": 48,
            "costs": NO_LOADS,
            "prefix_cache": False,  # what is found costs nobody anything
        },
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_policy_keeps_its_promises_where_it_matters_that(name: str) -> None:
    scenario = SCENARIOS[name]
    world = World(**scenario.config)
    scenario.run(world)
    world.drain()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_policy_without_it_breaks_them(name: str) -> None:
    scenario = SCENARIOS[name]
    world = World(policy=scenario.mutant, **scenario.config)
    with pytest.raises(Violation, match=scenario.says):
        scenario.run(world)


def test_a_history_made_for_it_uses_more_than_a_third_of_the_bound() -> None:
    """`a` is charged for long answers that end at once, gathers what is given back, then spends it
    on short answers that do not end. `b`'s weight leaves it hardly any part in the bound."""
    settings = FairSettings(quantum_ms=4.0, overdraft_ms=0.0, max_skips=3, max_open=4)
    world = World(settings, costs=NO_LOADS, num_blocks=64, max_step_tokens=64)

    def serve(expected: float, length: int, num_steps: int) -> None:
        world.lengths.num_tokens = expected
        for _ in range(num_steps):
            keep_waiting(
                world, "a", 8, num_prompt_tokens=1, num_output_tokens=length, max_tokens=44
            )
            keep_waiting(world, "b", 8, num_prompt_tokens=16, num_output_tokens=1)
            world.step()

    serve(44.0, 14, 100)
    serve(1.0, 44, 200)
    assert world.auditor.use_of_bound > 0.3
    world.drain()
