"""When there will be room, by prediction."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loraplex.engine.predicted_ends import PredictedEnds


@dataclass(eq=False)
class Running:
    """What is asked of a request that runs."""

    steps: float
    num_blocks: int
    adapter: str | None = None
    num_bytes: int = 0
    block_table: range = field(init=False)
    submission: SimpleNamespace = field(init=False)

    def __post_init__(self) -> None:
        self.block_table = range(self.num_blocks)
        self.submission = SimpleNamespace(adapter_bytes=self.num_bytes if self.adapter else 0)


def ends(*running: Running) -> PredictedEnds:
    return PredictedEnds(running, lambda each: each.steps)


@pytest.mark.parametrize(
    ("num_blocks", "num_bytes", "steps"),
    [(0, 0, 0.0), (1, 0, 3.0), (5, 0, 7.0), (0, 1, 9.0), (1, 5, 9.0), (99, 0, 9.0), (-4, -1, 0.0)],
)
def test_there_is_room_when_so_many_have_ended_as_hold_it(
    num_blocks: int, num_bytes: int, steps: float
) -> None:
    known = ends(Running(9.0, 1, "x", 5), Running(3.0, 4), Running(7.0, 2, "x", 5))
    assert known.steps_until(num_blocks, num_bytes) == steps


def test_where_nothing_runs_there_is_nothing_to_wait_for() -> None:
    assert ends().steps_until(3, 3) == 0.0


@given(
    running=st.lists(
        st.builds(
            Running,
            st.floats(1, 50),
            st.integers(0, 5),
            st.sampled_from([None, "x", "y"]),
            st.just(4),
        )
    ),
    num_blocks=st.integers(-2, 20),
    num_bytes=st.integers(-2, 10),
)
def test_it_is_the_first_end_by_which_enough_is_left(
    running: list[Running], num_blocks: int, num_bytes: int
) -> None:
    def is_enough(steps: float) -> bool:
        left = [each for each in running if each.steps <= steps]
        held = {each.adapter for each in running if each.steps > steps}
        adapters = {each.adapter for each in left} - held - {None}
        return sum(e.num_blocks for e in left) >= num_blocks and 4 * len(adapters) >= num_bytes

    steps = ends(*running).steps_until(num_blocks, num_bytes)
    at = sorted(each.steps for each in running)
    expected = next((end for end in [0.0, *at] if is_enough(end)), at[-1] if at else 0.0)
    assert steps == expected
