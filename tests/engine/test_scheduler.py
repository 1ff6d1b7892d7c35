from dataclasses import replace

import pytest
from tests.engine import build
from tests.engine.simulated_runner import SimulatedRunner, expected_output

from loraplex.adapters.residency import Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.errors import EngineOverloaded, RequestRefused
from loraplex.engine.events import Events
from loraplex.engine.protocol import Sampling
from loraplex.engine.scheduler import Scheduler


def run_step(scheduler: Scheduler, runner: SimulatedRunner, now: float = 0.0) -> Events:
    plan = scheduler.plan(now)
    return scheduler.commit(plan, runner.run(plan))


def test_a_short_prompt_is_computed_in_one_step_and_yields_its_first_token() -> None:
    scheduler = build.scheduler()
    scheduler.add(build.submit("a", 3), now=0.0)
    plan = scheduler.plan(now=0.0)
    (chunk,) = plan.chunks
    assert (chunk.start, len(chunk.token_ids)) == (0, 3)
    assert chunk.sample is not None
    assert chunk.sample.position == 0


def test_a_long_prompt_is_cut_into_chunks_and_only_the_last_one_samples() -> None:
    scheduler, runner = build.scheduler(), SimulatedRunner(16, 4)
    scheduler.add(build.submit("a", 40), now=0.0)
    sampled = []
    for _ in range(3):
        run_step(scheduler, runner)
        sampled.append([chunk.sample is not None for chunk in runner.plans[-1].chunks])
    assert sampled == [[False], [False], [True]]


def test_decodes_get_their_token_before_prompts_get_the_rest_of_the_step() -> None:
    scheduler, runner = build.scheduler(), SimulatedRunner(16, 4)
    scheduler.add(build.submit("a", 3, max_tokens=9), now=0.0)
    run_step(scheduler, runner)
    scheduler.add(build.submit("b", 40), now=0.0)
    plan = scheduler.plan(now=0.0)
    sizes = {chunk.request_id: len(chunk.token_ids) for chunk in plan.chunks}
    assert sizes == {"a": 1, "b": 15}


def test_requests_are_admitted_in_order_of_arrival() -> None:
    scheduler = build.scheduler(build.config(max_running=2))
    for name in "abc":
        scheduler.add(build.submit(name), now=0.0)
    assert [chunk.request_id for chunk in scheduler.plan(now=0.0).chunks] == ["a", "b"]


def test_a_batch_holds_base_rows_first_and_each_adapters_rows_together() -> None:
    residency = Residency(100)
    scheduler, runner = build.scheduler(residency=residency), SimulatedRunner(16, 4)
    for name, digest in zip("abcde", ("y", "x", None, "y", "x"), strict=True):
        scheduler.add(build.submit(name, 2, adapter=digest), now=0.0, adapter_bytes=1)
    plan = scheduler.plan(now=0.0)
    scheduler.commit(plan, runner.run(plan))
    for key in plan.loads:
        residency.finish_load(key)
    adapters = [chunk.adapter and chunk.adapter.digest for chunk in scheduler.plan(now=0.0).chunks]
    assert adapters == [None, "y", "y", "x", "x"]


def test_two_requests_for_one_absent_adapter_start_one_load() -> None:
    scheduler = build.scheduler()
    for name in "ab":
        scheduler.add(build.submit(name, adapter="x"), now=0.0, adapter_bytes=1)
    assert scheduler.plan(now=0.0).loads == (AdapterKey("t", "x"),)
    assert scheduler.plan(now=0.0).loads == ()


def test_a_request_whose_adapter_is_loading_does_not_hold_up_those_behind_it() -> None:
    scheduler = build.scheduler()
    scheduler.add(build.submit("cold", adapter="x"), now=0.0, adapter_bytes=1)
    scheduler.add(build.submit("base"), now=0.0)
    assert [chunk.request_id for chunk in scheduler.plan(now=0.0).chunks] == ["base"]


def test_when_adapter_memory_is_full_the_first_in_line_is_not_overtaken_for_ever() -> None:
    residency = Residency(10)
    scheduler, runner = build.scheduler(residency=residency), SimulatedRunner(16, 4)
    scheduler.add(build.submit("a", adapter="x", max_tokens=3), now=0.0, adapter_bytes=10)
    for key in scheduler.plan(now=0.0).loads:
        residency.finish_load(key)
    run_step(scheduler, runner)
    scheduler.add(build.submit("b", adapter="y"), now=0.0, adapter_bytes=10)
    scheduler.add(build.submit("c", adapter="x"), now=0.0, adapter_bytes=10)
    run_step(scheduler, runner)
    assert [chunk.request_id for chunk in runner.plans[-1].chunks] == ["a"]
    run_step(scheduler, runner)
    assert scheduler.plan(now=0.0).loads == (AdapterKey("t", "y"),)


def test_a_failed_load_fails_the_requests_that_wait_for_it_and_no_others() -> None:
    residency = Residency(100)
    scheduler = build.scheduler(residency=residency)
    scheduler.add(build.submit("a", adapter="x"), now=0.0, adapter_bytes=1)
    scheduler.add(build.submit("b"), now=0.0)
    scheduler.plan(now=0.0)
    residency.fail_load(AdapterKey("t", "x"))
    scheduler.fail_adapter(AdapterKey("t", "x"), "adapter_load_failed", "no such file")
    events = scheduler.take_events()
    assert [(f.request_id, f.code) for f in events.failed] == [("a", "adapter_load_failed")]
    assert scheduler.num_running == 1


def test_an_abort_frees_everything_before_the_next_step() -> None:
    scheduler, runner = build.scheduler(), SimulatedRunner(16, 4)
    scheduler.add(build.submit("a", 10), now=0.0)
    run_step(scheduler, runner)
    scheduler.abort("a", now=0.0)
    scheduler.check()
    assert scheduler.num_free_blocks == 16
    (finished,) = scheduler.take_events().finished
    assert (finished.reason, finished.usage.completion_tokens) == ("abort", 1)
    assert not scheduler.has_work


@pytest.mark.parametrize(
    ("num_steps", "num_computed"), [(0, 0), (1, 16), (2, 32), (3, 40), (4, 40)]
)
def test_an_abort_reports_the_prompt_as_far_as_it_was_computed(
    num_steps: int, num_computed: int
) -> None:
    scheduler, runner = build.scheduler(), SimulatedRunner(16, 4)
    scheduler.add(build.submit("a", 40), now=0.0)
    for _ in range(num_steps):
        run_step(scheduler, runner)
    scheduler.abort("a", now=0.0)
    (finished,) = scheduler.take_events().finished
    assert finished.usage.prompt_tokens == num_computed


def test_what_was_computed_before_a_preemption_is_reported() -> None:
    scheduler, runner = build.scheduler(build.config(num_blocks=12)), SimulatedRunner(12, 4)
    for name in "ab":
        scheduler.add(build.submit(name, 20, max_tokens=20), now=0.0)
    while not any(plan.num_preempted for plan in runner.plans):
        run_step(scheduler, runner)
    scheduler.abort("b", now=0.0)
    (finished,) = scheduler.take_events().finished
    assert finished.usage.prompt_tokens == 20


def test_aborting_an_unknown_request_changes_nothing() -> None:
    scheduler = build.scheduler()
    scheduler.abort("nobody", now=0.0)
    assert not scheduler.has_work


def test_a_row_with_non_finite_logits_fails_alone() -> None:
    scheduler, runner = build.scheduler(), SimulatedRunner(16, 4)
    for name in "ab":
        scheduler.add(build.submit(name), now=0.0)
    plan = scheduler.plan(now=0.0)
    output = replace(runner.run(plan), failures={"a": "logits are not finite"})
    events = scheduler.commit(plan, output)
    assert [failed.request_id for failed in events.failed] == ["a"]
    assert scheduler.num_running == 1


def test_a_step_that_could_not_run_fails_its_requests_and_leaves_the_waiting_ones() -> None:
    scheduler = build.scheduler(build.config(max_running=1))
    for name in "ab":
        scheduler.add(build.submit(name), now=0.0)
    scheduler.fail_step(scheduler.plan(now=0.0), "out of memory")
    assert [failed.request_id for failed in scheduler.take_events().failed] == ["a"]
    scheduler.check()
    assert [chunk.request_id for chunk in scheduler.plan(now=0.0).chunks] == ["b"]


@pytest.mark.parametrize(
    ("stop", "max_tokens", "reason"),
    [((), 3, "length"), (("SECOND",), 9, "stop")],
)
def test_a_request_ends_at_its_cap_or_at_a_stop_string(
    stop: tuple[str, ...], max_tokens: int, reason: str
) -> None:
    scheduler, runner = build.scheduler(), SimulatedRunner(16, 4)
    plain = build.submit("a")
    output = expected_output(plain.prompt, None, max_tokens, build.EOS)
    stop = tuple(str(output[1]) for _ in stop)
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, seed=0, stop=stop)
    scheduler.add(build.submit("a", sampling=sampling), now=0.0)
    finished = []
    while scheduler.has_work:
        finished += run_step(scheduler, runner).finished
    assert [f.reason for f in finished] == [reason]
    assert finished[0].usage.completion_tokens == (2 if stop else max_tokens)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_prompt_tokens": 0}, "prompt"),
        ({"max_tokens": 0}, "prompt"),
        ({"num_prompt_tokens": 40, "max_tokens": 9}, "max_tokens"),
        ({"weight": 0.0}, "weight"),
        ({"weight": float("nan")}, "weight"),
    ],
)
def test_a_request_that_can_never_run_is_refused_naming_the_field(
    changes: dict[str, int], field: str
) -> None:
    with pytest.raises(RequestRefused) as refused:
        build.scheduler().add(build.submit("a", **changes), now=0.0)
    assert refused.value.field == field


def test_an_adapter_larger_than_all_adapter_memory_is_refused() -> None:
    with pytest.raises(RequestRefused, match="needs 101 bytes"):
        build.scheduler().add(build.submit("a", adapter="x"), now=0.0, adapter_bytes=101)


def test_a_prompt_and_cap_that_fill_the_context_exactly_are_served() -> None:
    scheduler, runner = build.scheduler(), SimulatedRunner(16, 4)
    scheduler.add(build.submit("a", 40, 8), now=0.0)
    tokens = []
    while scheduler.has_work:
        tokens += run_step(scheduler, runner).tokens
    assert len(tokens) == 8


@pytest.mark.parametrize("changes", [{"max_waiting_requests": 2}, {"max_waiting_tokens": 7}])
def test_a_full_queue_refuses_by_count_and_by_tokens(changes: dict[str, int]) -> None:
    scheduler = build.scheduler(build.config(**changes))
    for name in "ab":
        scheduler.add(build.submit(name, 3), now=0.0)
    with pytest.raises(EngineOverloaded) as overloaded:
        scheduler.add(build.submit("c", 3), now=0.0)
    assert overloaded.value.retry_after_s > 0
