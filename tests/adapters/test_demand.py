"""What is remembered of adapters that are asked for."""

import pytest

from loraplex.adapters.demand import Demand
from loraplex.adapters.spec import AdapterKey

MOST = 8


def key(name: object) -> AdapterKey:
    return AdapterKey("tenant", str(name))


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Demand:
    """Knows as many adapters as it may; each was asked for three times."""
    monkeypatch.setattr("loraplex.adapters.demand._MAX_KNOWN", MOST)
    demand = Demand()
    for _ in range(3):
        for name in range(MOST):
            demand.arrived(key(name), 4)
    return demand


def push_out(demand: Demand) -> None:
    """So many come that what nobody waits for is forgotten."""
    for name in range(1000, 1000 + 3 * MOST):
        for _ in range(5):
            demand.arrived(key(name), 4)


def test_an_adapter_that_is_asked_for_the_first_time_is_not_forgotten_for_others(
    full: Demand,
) -> None:
    full.arrived(key("new"), 4)
    assert full.num_bytes(key("new")) == 4
    assert full.worth(key("new")) > 0


def test_what_requests_wait_for_is_not_forgotten_however_many_come(full: Demand) -> None:
    full.waits(key(0), 4)
    push_out(full)
    assert full.num_bytes(key(1)) == 0
    assert full.is_awaited(key(0))
    full.waits_no_more(key(0))
    assert full.num_waiting == 0


def test_a_request_that_ran_may_wait_again_for_an_adapter_that_was_forgotten(full: Demand) -> None:
    full.waits(key(0), 4)
    full.waits_no_more(key(0))
    push_out(full)
    assert full.num_bytes(key(0)) == 0
    full.waits(key(0), 4)
    assert full.num_bytes(key(0)) == 4
    assert full.is_awaited(key(0))


def test_more_may_be_waited_for_than_are_remembered_else(full: Demand) -> None:
    for name in range(100):
        full.arrived(key(name), 4)
        full.waits(key(name), 4)
    assert full.num_waiting == 100
    assert all(full.is_awaited(key(name)) for name in range(100))
