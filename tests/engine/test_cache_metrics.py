from prometheus_client import CollectorRegistry
from tests.engine import build
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.adapters.residency import Residency
from loraplex.engine.metrics import WorkerMetrics


def test_metrics_tell_what_was_found_and_evicted_and_where_all_blocks_are() -> None:
    residency = Residency(0)
    scheduler, runner = build.scheduler(residency=residency), SimulatedRunner(16, 4)
    registry = CollectorRegistry()
    WorkerMetrics(registry, scheduler, residency)
    prompts = [range(13), range(13), range(100, 140), range(200, 213)]
    for number, prompt in enumerate(prompts):
        scheduler.add(build.submit(str(number), prompt=tuple(prompt)), now=0.0)
        while scheduler.has_work:
            plan = scheduler.plan(now=0.0)
            scheduler.commit(plan, runner.run(plan))
    value = registry.get_sample_value
    assert value("loraplex_prefix_cache_asked_tokens_total") == 13 + 13 + 40 + 13
    assert value("loraplex_prefix_cache_found_tokens_total") == 12
    # Of 16 blocks the two that were alike left 4, the third 10, and the last needed 4.
    assert value("loraplex_prefix_cache_evicted_blocks_total") == 2
    states = {
        state: value("loraplex_kv_blocks", {"state": state}) for state in ("free", "held", "cached")
    }
    assert states == {"free": 0, "held": 0, "cached": 16}
