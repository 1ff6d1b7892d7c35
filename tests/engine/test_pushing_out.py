"""Who pays for what is computed again because blocks were taken."""

from dataclasses import replace

import pytest
from tests.engine.fair_world import SETTINGS, World

ROOMY = replace(SETTINGS, max_open=3, overdraft_ms=1000.0, quantum_ms=200.0)


def two_long_requests(**config: object) -> World:
    """The blocks hold one of them whole, and half of the other."""
    values = {"num_blocks": 40, "max_step_tokens": 200, "max_model_len": 120}
    world = World(ROOMY, **(values | config))
    for tenant in "ab":
        world.add(tenant, num_prompt_tokens=60, num_output_tokens=40)
        world.step()
    return world


def paid_ms(world: World) -> float:
    """Run to the end: what some have paid for others, less what they were given back."""
    share, paid = world.policy.main.share, []
    restore = share.restore

    def note(key: str, cost_ms: float) -> None:
        before = share._charges[key].prepaid_ms
        is_paid = key in share._payments
        restore(key, cost_ms)
        if is_paid:
            assert share._charges[key].prepaid_ms <= before
            paid.append(share._charges[key].prepaid_ms)

    share.restore = note
    world.drain()
    assert len(paid) == sum(p.by != p.request_id for plan in world.plans for p in plan.preempted)
    return sum(paid)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_what_is_paid_for_pushing_out_is_what_is_computed_again(*, prefix_cache: bool) -> None:
    world = two_long_requests(prefix_cache=prefix_cache)
    assert paid_ms(world) == world.again_ms["a"] > 0
    assert (world.again_ms["a"] < 40) is prefix_cache


def test_who_pushed_out_a_request_that_then_ends_is_given_all_back() -> None:
    world = two_long_requests()
    while not world.plans[-1].preempted:
        world.step()
    ((victim, by, *_),) = world.plans[-1].preempted
    charge = world.policy.main.share._charges[by]
    assert charge.caused_ms > 0
    world.abort(victim)
    assert charge.caused_ms == 0
    world.drain()


def test_a_copy_is_paid_by_who_took_the_blocks_as_far_as_it_was_made() -> None:
    world = two_long_requests(num_host_blocks=40, copy_ms_per_block=0.5)
    paid = paid_ms(world)
    num_copied = sum(plan.num_copied_blocks for plan in world.plans)
    assert num_copied > 0
    assert paid == pytest.approx(0.5 * num_copied)
