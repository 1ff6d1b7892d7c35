"""How much of the bound on unfairness a run uses."""

from types import SimpleNamespace

from tests.engine.simulation.worlds import requests, setup

from loraplex.engine.simulation import experiment


def test_the_costliest_request_has_the_largest_adapter_in_the_cost_models_unit() -> None:
    asked = []
    costs = SimpleNamespace(request_ms=lambda *what: asked.append(what) or 1.0)
    largest = experiment._largest_ms(
        setup(requests(4, adapters=2)), 30, SimpleNamespace(costs=costs)
    )
    assert largest == 1.0
    (what,) = asked
    assert what[3:] == (8000 / (1 << 20), 8000)
