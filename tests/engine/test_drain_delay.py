"""Changes of adapters where there is room for too few: put off for as long as they cost."""

from dataclasses import replace

from tests.engine.fair_world import SETTINGS, World
from tests.engine.linear_costs import LinearCosts

from loraplex.adapters.residency import State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.admission import Blocked
from loraplex.engine.fair_queue import FairQueue
from loraplex.engine.request import Request

COLD = AdapterKey("b", "cold")


def one_slot(max_drain_ms: float) -> World:
    """Steps of 2 ms and more; one adapter fits."""
    settings = replace(SETTINGS, max_drain_ms=max_drain_ms, overdraft_ms=0.0, max_open=6)
    costs = LinearCosts(constant_ms=2.0, load_ms=0.5)
    return World(settings, costs=costs, adapter_bytes=2, num_blocks=64)


def keep_hot(world: World, count: int = 8) -> None:
    """`a` always has requests for its adapter."""
    num_open = sum(r.tenant == "a" for r in world.scheduler._requests.values())
    for _ in range(count - num_open):
        num_tokens = 3 + 7 * world.num_added % 13
        world.add("a", num_output_tokens=num_tokens, adapter="hot")


def steps_until_cold_is_asked_for(world: World) -> tuple[int, int, int]:
    """Steps until the cold adapter's load starts, requests of the hot one that began meanwhile, and
    refills meanwhile."""
    for _ in range(20):
        keep_hot(world)
        world.step()
    share = world.policy.main.share
    world.add("b", adapter="cold")
    num_before, at_first = world.num_added, share.num_refills
    for count in range(400):
        keep_hot(world)
        num_refills = share.num_refills
        world.step()
        if world.residency.state(COLD) is not State.ABSENT:
            return count, world.num_added - num_before, num_refills - at_first
    raise AssertionError("the cold adapter is never loaded")


def test_others_run_on_for_as_long_as_making_them_end_would_cost_and_no_longer() -> None:
    at_once, held = (steps_until_cold_is_asked_for(one_slot(ms)) for ms in (0.0, 1000.0))
    assert at_once[0] < held[0] <= 4 * at_once[0] + 8
    assert held[1] > at_once[1]


def test_nobody_is_given_more_while_a_change_of_adapters_is_put_off() -> None:
    assert steps_until_cold_is_asked_for(one_slot(1000.0))[2] == 0


def test_the_cap_bounds_how_long_it_is_put_off() -> None:
    short, long = (steps_until_cold_is_asked_for(one_slot(ms)) for ms in (4.0, 1000.0))
    assert short[0] < long[0]


def test_where_two_always_wait_adapters_change_places_less_often() -> None:
    num_loads = []
    for max_drain_ms in (0.0, 60.0):
        world = one_slot(max_drain_ms)
        for _ in range(600):
            keep_hot(world)
            if not any(r.tenant == "b" for r in world.waiting()):
                world.add("b", adapter="cold", num_output_tokens=4)
            world.step()
        num_loads.append(sum(len(plan.loads) for plan in world.plans))
        world.drain()
    assert num_loads[1] < 0.75 * num_loads[0]


class Counting(FairQueue):
    """Counts candidates that found no memory for their adapters."""

    num_refused = 0

    def blocked(self, request: Request, by: Blocked) -> None:
        self.num_refused += by is Blocked.ADAPTER_MEMORY
        super().blocked(request, by)


def test_however_many_tenants_lack_memory_few_are_asked_for_and_others_go_on() -> None:
    world = one_slot(1000.0)
    queue = world.policy._main = Counting(replace(SETTINGS, max_drain_ms=1000.0, max_open=6))
    world.add("a", adapter="hot", num_output_tokens=40)
    for _ in range(10):
        world.step()
    for number in range(50):
        world.add(f"c{number:02}", adapter="cold")
    goes_on = world.add("z", adapter=None)
    world.step()
    assert 1 < queue.num_refused <= 16
    assert goes_on not in {request.key for request in world.waiting()}
