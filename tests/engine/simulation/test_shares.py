import pytest

from loraplex.engine.simulation.records import Record, Run
from loraplex.engine.simulation.shares import below_share, max_min_level


@pytest.mark.parametrize(
    ("demands", "capacity", "level"),
    [
        ([1.0, 1.0], 3.0, float("inf")),
        ([4.0, 4.0], 4.0, 2.0),
        ([1.0, 5.0, 9.0], 9.0, 4.0),  # 1, and the rest in halves
        ([9.0, 2.0, 5.0], 13.0, 6.0),
    ],
)
def test_who_asks_for_little_gets_it_and_the_rest_is_shared_evenly(
    demands: list[float], capacity: float, level: float
) -> None:
    assert max_min_level(demands, capacity) == pytest.approx(level)


def test_tenants_below_their_share_are_those_that_would_get_all_they_need() -> None:
    records = []
    for tenant, seconds in (("small", 1.0), ("large", 5.0), ("huge", 9.0), ("small", 0.5)):
        records.append(Record(tenant, None, 0.0, 1, machine_ms=seconds * 1e3))
    assert below_share(Run(records), 9.0) == {"small"}
    assert below_share(Run(records), 12.0) == {"small", "large"}
