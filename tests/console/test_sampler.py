import math
from dataclasses import fields

from prometheus_client import CollectorRegistry
from tests.platform.scripted_engine import ScriptedEngine
from tests.platform.tiny_model import model_info

from loraplex.platform.console.charts import CHARTS
from loraplex.platform.console.readings import quantile_s
from loraplex.platform.console.sampler import EVERY_S, KEPT_S, Point, Sampler
from loraplex.platform.metrics import GatewayMetrics


class Bench:
    """A sampler whose time and metrics a test moves."""

    def __init__(self) -> None:
        self.metrics = GatewayMetrics(CollectorRegistry())
        self.engine = ScriptedEngine(model_info())
        self.engine.metrics_text = ""
        self.now_s = 1000.0
        self.sampler = Sampler(self.metrics, self.engine, lambda: self.now_s)

    async def sample(self) -> Point:
        await self.sampler.sample()
        self.now_s += EVERY_S
        return self.sampler.points()[-1]

    def worker(self, steps: int, adapters: int) -> None:
        self.engine.metrics_text = (
            f"# TYPE loraplex_step_adapters histogram\nloraplex_step_adapters_count {steps}\n"
            f"loraplex_step_adapters_sum {adapters}\n"
        )


async def test_a_rate_is_the_growth_over_the_last_ten_seconds() -> None:
    bench = Bench()
    for _ in range(6):
        await bench.sample()
    bench.metrics.requests.labels("ok").inc(15)
    bench.metrics.requests.labels("rate_limited").inc(5)
    point = await bench.sample()
    assert (point.requests_per_s, point.refused_per_s, point.failed_per_s) == (2.0, 0.5, 0.0)
    for _ in range(5):
        point = await bench.sample()
    assert point.requests_per_s == 0.0


async def test_the_first_sample_has_no_rates_since_nothing_came_before() -> None:
    bench = Bench()
    bench.metrics.requests.labels("ok").inc(1000)
    assert (await bench.sample()).requests_per_s is None


async def test_adapters_per_step_are_those_of_the_steps_in_between() -> None:
    bench = Bench()
    bench.worker(steps=100, adapters=500)
    await bench.sample()
    bench.worker(steps=110, adapters=530)
    assert (await bench.sample()).adapters_per_step == 3.0


async def test_a_worker_that_was_started_again_counts_from_zero() -> None:
    bench = Bench()
    bench.worker(steps=100, adapters=500)
    await bench.sample()
    bench.worker(steps=4, adapters=8)
    assert (await bench.sample()).adapters_per_step == 2.0


async def test_without_a_worker_its_figures_are_absent_and_come_back_without_a_leap() -> None:
    bench = Bench()
    bench.engine.is_connected = False
    point = await bench.sample()
    assert point.kv_held is None
    bench.engine.is_connected = True
    bench.engine.metrics_text = "loraplex_step_tokens_sum 1000000.0\n"
    assert (await bench.sample()).computed_tokens_per_s is None


async def test_a_quarter_of_an_hour_is_kept_and_told_from_a_time_on() -> None:
    bench = Bench()
    for _ in range(int(KEPT_S / EVERY_S) + 10):
        last = await bench.sample()
    points = bench.sampler.points()
    assert len(points) == KEPT_S / EVERY_S
    assert bench.sampler.points(after_s=last.at_s - 2 * EVERY_S) == points[-2:]


async def test_a_clock_that_is_set_back_starts_the_charts_anew() -> None:
    bench = Bench()
    for _ in range(5):
        await bench.sample()
    bench.now_s -= 60
    await bench.sample()
    point = await bench.sample()
    assert point.requests_per_s == 0.0
    assert [p.at_s for p in bench.sampler.points()] == sorted({point.at_s - EVERY_S, point.at_s})


def test_a_quantile_is_linear_within_its_bucket_and_counts_only_what_is_new() -> None:
    earlier = ((0.25, 7.0), (0.5, 9.0), (math.inf, 9.0))
    later = ((0.25, 7.0), (0.5, 19.0), (math.inf, 19.0))
    assert quantile_s(earlier, later, 0.5) == 0.375
    assert quantile_s(later, later, 0.5) is None
    above_all = ((0.1, 0.0), (0.2, 0.0), (math.inf, 3.0))
    assert quantile_s((), above_all, 0.95) == 0.2


def test_every_series_of_a_chart_is_a_field_of_a_point() -> None:
    names = {field.name for field in fields(Point)}
    assert {series.field for chart in CHARTS for series in chart.series} <= names
