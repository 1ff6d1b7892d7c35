"""What the KV pool is expected to hold, and who starts by it."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.fair_world import World

from loraplex.engine.kv_forecast import KvForecast

ENTRIES = st.lists(
    st.tuples(st.integers(1, 50), st.integers(1, 30), st.integers(0, 40)), max_size=8
)


@dataclass(eq=False)
class Running:
    """Stands for a request; a forecast only keeps it."""

    held: float
    ends_at: int


def held_at_most(running: list[Running], now: int) -> float:
    """By looking at each step; one that is overdue ends after one more."""
    ends = {id(r): max(r.ends_at, now + 1) for r in running}
    last = max(ends.values())
    return max(
        sum(r.held + step for r in running if ends[id(r)] >= step)
        for step in range(now + 1, last + 1)
    )


@given(ENTRIES, st.integers(1, 50), st.integers(1, 30), st.data())
def test_the_peak_is_that_of_a_step_by_step_account(
    entries: list[tuple[int, int, int]], num_tokens: int, left: int, data: st.DataObject
) -> None:
    forecast, now, running = KvForecast(lambda _: 1.0), 0, []
    for held, output_left, pause in entries:
        request = Running(held - now, now + output_left)
        forecast.start(request, held, output_left)  # type: ignore[arg-type]  # a stand-in
        running.append(request)
        for _ in range(pause):
            forecast.next_step()
        now += pause
        if data.draw(st.booleans()):
            gone = running.pop(data.draw(st.integers(0, len(running) - 1)))
            forecast.stop(gone)  # type: ignore[arg-type]  # a stand-in
    candidate = Running(num_tokens - now, now + left)
    most = held_at_most([*running, candidate], now)
    assert not forecast.exceeds(most, num_tokens, left)
    assert forecast.exceeds(most - 1, num_tokens, left)
    assert forecast.peak(num_tokens, left) == most
    assert len(forecast) == len(running)


@pytest.mark.parametrize(("kv_forecast", "starts"), [(True, 1), (False, 2)])
def test_one_that_is_expected_to_overflow_the_pool_waits_until_there_is_room(
    kv_forecast: bool, starts: int
) -> None:
    world = World(num_blocks=12, max_step_tokens=48, kv_forecast=kv_forecast)
    world.lengths.num_tokens = 14.0
    for _ in range(2):  # 18 + 14 tokens each; the pool holds 48
        world.add("a", num_prompt_tokens=18, num_output_tokens=14)
    world.step()
    assert world.scheduler.num_running == starts
    world.drain()
    assert (sum(world.num_preempted.values()) == 0) is kv_forecast


def test_one_alone_starts_however_long_its_output_may_be() -> None:
    world = World(num_blocks=12, max_step_tokens=48, kv_forecast=True)
    world.lengths.num_tokens = 1000.0
    world.add("a", num_prompt_tokens=40, num_output_tokens=3, max_tokens=8)
    world.step()
    assert world.scheduler.num_running == 1
    world.drain()
