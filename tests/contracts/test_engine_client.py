"""What every engine client promises to the gateway: the real one, and the one of the tests."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest
from msgspec import structs
from tests.contracts.engine_pairs import MAX_EVENTS, Pair
from tests.contracts.scripted_worker import ScriptedWorker
from tests.platform.scripted_engine import DIGEST
from tests.platform.tiny_model import model_info

from loraplex.engine.client import EngineClient
from loraplex.engine.errors import (
    DeadlineUnreachable,
    EngineNotReached,
    EngineOverloaded,
    EngineUnavailable,
    JournalUnavailable,
    RequestFailed,
    RequestRefused,
)
from loraplex.engine.protocol import (
    Alternative,
    Finished,
    Sampling,
    Submit,
    TokenLogprob,
    Tokens,
    Usage,
)
from loraplex.engine.residency_protocol import Warm


def submit(request_id: str) -> Submit:
    return Submit(
        request_id=request_id,
        tenant="t",
        adapter=None,
        prompt=(1, 2, 3),
        sampling=Sampling(max_tokens=50, seed=1),
    )


async def collect(client: EngineClient, request_id: str) -> list[Tokens | Finished]:
    return [event async for event in client.generate(submit(request_id))]


def text_of(events: list[Tokens | Finished]) -> str:
    return "".join(event.text for event in events if isinstance(event, Tokens))


async def reading(pair: Pair, request_id: str) -> asyncio.Task[list[Tokens | Finished]]:
    """A reader whose request has reached the engine."""
    task = asyncio.create_task(collect(pair.client, request_id))
    await pair.engine.submitted()
    return task


async def test_tokens_come_in_order_and_then_one_finished(pair: Pair) -> None:
    reader = await reading(pair, "a")
    pair.engine.emit("a", "x", "y", "z")
    pair.engine.finish("a", "length", text="!", cached=2)
    *tokens, finished = await reader
    assert "".join(event.text for event in tokens) == "xyz!"
    position = 0
    for event in tokens:
        assert isinstance(event, Tokens)
        assert event.sequence == position
        position += len(event.ids)
    assert isinstance(finished, Finished)
    assert finished.reason == "length"
    assert finished.usage == Usage(prompt_tokens=3, cached_tokens=2, completion_tokens=3)


async def test_an_open_request_is_explained_and_another_is_not(pair: Pair) -> None:
    reader = await reading(pair, "a")
    explanation = await pair.client.why("a")
    assert explanation is not None
    assert (explanation.waits_for, explanation.waited_ms) == ("share", {"share": 2.5})
    assert await pair.client.why("b") is None
    pair.engine.finish("a", "stop")
    await reader
    assert await pair.client.why("a") is None


async def test_tokens_that_wait_for_the_reader_come_as_one(pair: Pair) -> None:
    async with aclosing(pair.client.generate(submit("a"))) as events:
        first = asyncio.create_task(anext(events))
        await pair.engine.submitted()
        pair.engine.emit("a", "x")
        await first
        pair.engine.emit("a", "y", "z")
        pair.engine.finish("a")
        await pair.engine.settled()
        tokens = await anext(events)
        assert isinstance(tokens, Tokens)
        assert (tokens.sequence, tokens.ids, tokens.text) == (1, (7, 7), "yz")
        assert isinstance(await anext(events), Finished)


async def test_choices_are_told_apart_and_each_says_why_it_ended(pair: Pair) -> None:
    asked = structs.replace(submit("a"), sampling=Sampling(max_tokens=50, n=2, seed=1))
    async with aclosing(pair.client.generate(asked)) as events:
        first = asyncio.create_task(anext(events))
        await pair.engine.submitted()
        pair.engine.emit("a", "x", choice=1)
        await first
        pair.engine.emit("a", "y", choice=0)
        pair.engine.emit("a", "z", choice=1)
        pair.engine.end("a", 1, "length")
        pair.engine.emit("a", "!", choice=0)
        pair.engine.finish("a", "stop")
        await pair.engine.settled()
        *tokens, finished = [event async for event in events]
    found = [(t.choice, t.sequence, t.ids, t.text, t.finish_reason) for t in tokens]
    assert found == [(0, 0, (7, 7), "y!", "stop"), (1, 1, (7,), "z", "length")]
    assert isinstance(finished, Finished)
    assert finished.usage == Usage(prompt_tokens=3, cached_tokens=0, completion_tokens=4)


async def test_a_reader_may_leave_as_many_events_of_each_choice(pair: Pair) -> None:
    asked = structs.replace(submit("a"), sampling=Sampling(max_tokens=50, n=2, seed=1))
    async with aclosing(pair.client.generate(asked)) as events:
        first = asyncio.create_task(anext(events))
        await pair.engine.submitted()
        pair.engine.emit("a", "x")
        await first
        for choice in [0, 1] * (MAX_EVENTS // 2):
            pair.engine.emit("a", "x", "x", choice=choice)
            await pair.engine.settled()
        assert pair.engine.aborted == []
        assert len((await anext(events)).text) == MAX_EVENTS


async def test_log_probabilities_come_with_their_tokens_in_order(pair: Pair) -> None:
    entries = [
        TokenLogprob(Alternative(letter, letter.encode(), -1.0), place, ())
        for place, letter in enumerate("xy")
    ]
    special = TokenLogprob(
        Alternative("<|end|>", None, -0.5), 2, (Alternative("\ufffd", b"\xc3", -float("inf")),)
    )
    reader = await reading(pair, "a")
    pair.engine.emit("a", "x", logprobs=entries[:1])
    pair.engine.emit("a", "y", logprobs=[*entries[1:], special])
    pair.engine.finish("a")
    told = [
        entry for event in await reader if isinstance(event, Tokens) for entry in event.logprobs
    ]
    assert told == [*entries, special]


async def test_all_options_reach_the_engine(pair: Pair) -> None:
    sampling = Sampling(
        max_tokens=50,
        n=2,
        temperature=0.5,
        top_p=0.5,
        top_k=5,
        min_p=0.5,
        repetition_penalty=1.5,
        presence_penalty=-1.5,
        frequency_penalty=0.5,
        logit_bias=((5, -100.0), (6, 1.0)),
        seed=2**63 - 1,
        stop=("a", "b"),
        stop_token_ids=(1, 2),
        ignore_eos=True,
        min_tokens=3,
        top_logprobs=20,
    )
    asked = structs.replace(submit("a"), sampling=sampling)
    async with aclosing(pair.client.generate(asked)) as events:
        first = asyncio.create_task(anext(events))
        assert (await pair.engine.submitted()) == asked
        pair.engine.finish("a")
        await first


async def test_requests_do_not_disturb_each_other(pair: Pair) -> None:
    one, two = await reading(pair, "one"), await reading(pair, "two")
    pair.engine.emit("one", "1")
    pair.engine.emit("two", "2")
    pair.engine.fail("two")
    pair.engine.emit("one", "1")
    pair.engine.finish("one")
    with pytest.raises(RequestFailed):
        await two
    assert text_of(await one) == "11"


async def test_a_refusal_names_the_field(pair: Pair) -> None:
    reader = await reading(pair, "a")
    pair.engine.reject("a", RequestRefused("too long", "prompt"))
    with pytest.raises(RequestRefused, match="too long") as refused:
        await reader
    assert refused.value.field == "prompt"
    assert await pair.client.abort("a") is None


async def test_an_overloaded_engine_says_when_to_come_back(pair: Pair) -> None:
    reader = await reading(pair, "a")
    pair.engine.reject("a", EngineOverloaded("full", 2.5))
    with pytest.raises(EngineOverloaded) as overloaded:
        await reader
    assert overloaded.value.retry_after_s == 2.5


@pytest.mark.parametrize("retry_after_s", [2.5, None])
async def test_a_deadline_that_cannot_be_met_is_told_apart(
    pair: Pair, retry_after_s: float | None
) -> None:
    reader = await reading(pair, "a")
    pair.engine.reject("a", DeadlineUnreachable("late", retry_after_s))
    with pytest.raises(DeadlineUnreachable) as late:
        await reader
    assert late.value.retry_after_s == retry_after_s
    assert await pair.client.abort("a") is None


async def test_a_worker_that_cannot_journal_is_told_apart(pair: Pair) -> None:
    reader = await reading(pair, "a")
    pair.engine.reject("a", JournalUnavailable("the disk is full", 5.0))
    with pytest.raises(JournalUnavailable, match="disk"):
        await reader


async def test_an_ending_has_the_digest_of_the_output(pair: Pair) -> None:
    one, two = await reading(pair, "one"), await reading(pair, "two")
    pair.engine.finish("one")
    pair.engine.fail("two")
    *_, finished = await one
    assert isinstance(finished, Finished)
    assert finished.output_digest == DIGEST
    with pytest.raises(RequestFailed):
        await two
    final = await pair.client.abort("two")
    assert final is not None
    assert final.output_digest == DIGEST


async def test_a_failure_has_a_code_and_its_usage_can_be_asked_for(pair: Pair) -> None:
    reader = await reading(pair, "a")
    pair.engine.emit("a", "x")
    pair.engine.fail("a", "non_finite_logits")
    with pytest.raises(RequestFailed) as failed:
        await reader
    assert failed.value.code == "non_finite_logits"
    final = await pair.client.abort("a")
    assert final is not None
    assert final.usage.completion_tokens == 1


async def test_a_worker_that_dies_fails_what_is_open_and_what_comes_then(pair: Pair) -> None:
    reader = await reading(pair, "a")
    pair.engine.emit("a", "x")
    pair.engine.die()
    with pytest.raises(EngineUnavailable):
        await reader
    assert await pair.client.abort("a") is None
    assert not pair.client.connected
    assert pair.client.model.name == "tiny"
    with pytest.raises(EngineNotReached):
        await collect(pair.client, "b")


async def test_an_iterator_that_is_closed_early_aborts_in_the_engine(pair: Pair) -> None:
    async with aclosing(pair.client.generate(submit("a"))) as events:
        first = asyncio.create_task(anext(events))
        await pair.engine.submitted()
        pair.engine.emit("a", "x")
        await first
    await pair.engine.settled()
    assert pair.engine.aborted == ["a"]
    final = await pair.client.abort("a")
    assert final is not None
    assert (final.reason, final.usage.completion_tokens) == ("abort", 1)


async def test_a_reader_that_is_cancelled_aborts_in_the_engine(pair: Pair) -> None:
    reader = await reading(pair, "a")
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    final = await pair.client.abort("a")
    assert final is not None
    assert final.usage == Usage(prompt_tokens=3, cached_tokens=0, completion_tokens=0)
    assert set(pair.engine.aborted) == {"a"}


async def test_an_abort_ends_a_reader_that_still_reads(pair: Pair) -> None:
    reader = await reading(pair, "a")
    pair.engine.emit("a", "x")
    ending = await pair.client.abort("a")
    *_, finished = await reader
    assert finished == ending
    assert isinstance(finished, Finished)
    assert finished.reason == "abort"


async def test_an_ending_that_nobody_read_can_be_asked_for(pair: Pair) -> None:
    async with aclosing(pair.client.generate(submit("a"))) as events:
        first = asyncio.create_task(anext(events))
        await pair.engine.submitted()
        pair.engine.emit("a", "x")
        await first
        pair.engine.emit("a", "y")
        pair.engine.finish("a", "stop")
        await pair.engine.settled()
    final = await pair.client.abort("a")
    assert final is not None
    assert (final.reason, final.usage.completion_tokens) == ("stop", 2)


async def test_an_abort_of_what_is_unknown_or_over_does_nothing(pair: Pair) -> None:
    assert await pair.client.abort("never") is None
    reader = await reading(pair, "a")
    pair.engine.finish("a")
    await reader
    assert await pair.client.abort("a") is None
    assert pair.engine.aborted == []


async def test_a_reader_that_does_not_read_is_aborted_and_no_other_waits_for_it(
    pair: Pair,
) -> None:
    other = await reading(pair, "other")
    async with aclosing(pair.client.generate(submit("slow"))) as events:
        first = asyncio.create_task(anext(events))
        await pair.engine.submitted()
        pair.engine.emit("slow", "x")
        await first
        for _ in range(MAX_EVENTS + 1):
            pair.engine.emit("slow", "x")
            pair.engine.emit("other", "o")
            await pair.engine.settled()
        pair.engine.finish("other")
        assert len(text_of(await other)) == MAX_EVENTS + 1
        assert pair.engine.aborted == ["slow"]
        with pytest.raises(RequestFailed) as failed:
            await anext(events)
    assert failed.value.code == "slow_client"
    assert await pair.client.abort("slow") is not None


async def test_before_a_worker_came_there_is_no_model(unconnected: EngineClient) -> None:
    assert not unconnected.connected
    with pytest.raises(EngineUnavailable):
        _ = unconnected.model
    with pytest.raises(EngineNotReached):
        await collect(unconnected, "a")


async def test_metrics_are_the_workers_text(pair: Pair) -> None:
    assert "worker_steps_total 1" in await pair.client.metrics()


async def test_a_worker_is_told_what_it_may_drop(pair: Pair) -> None:
    pair.client.drop("t", "d1")
    await pair.engine.settled()
    assert pair.engine.dropped == [("t", "d1")]


async def test_what_was_to_be_dropped_while_no_worker_was_there_is_told_to_the_next(
    tmp_path: Path,
) -> None:
    worker = ScriptedWorker(tmp_path / "w.sock", model_info(), MAX_EVENTS)
    worker.client.drop("t", "d1")
    await worker.start()
    await worker.settled()
    assert worker.dropped == [("t", "d1")]
    await worker.stop()


async def test_what_is_where_in_the_workers_memory_is_its_own_report(pair: Pair) -> None:
    report = await pair.client.residency()
    assert report is not None
    assert report.device.capacity_bytes == 100


async def test_nobody_tells_what_is_where_before_a_worker_came(unconnected: EngineClient) -> None:
    assert await unconnected.residency() is None


async def test_a_worker_is_told_of_hints_and_tells_where_one_adapter_is(pair: Pair) -> None:
    pair.client.warm(Warm("t", "d1", 60.0))
    assert await pair.client.tier("t", "d1") == "store"
    assert pair.engine.hints == [Warm("t", "d1", 60.0)]


async def test_a_hint_holds_until_its_end_and_a_repeat_lengthens_it(pair: Pair) -> None:
    for ttl_s in (60.0, 100.0, 20.0):
        pair.client.warm(Warm("t", "d1", ttl_s))
    assert 60.0 < pair.client.hints_of("t")["d1"] <= 100.0
    assert pair.client.hints_of("u") == {}
    pair.client.drop("t", "d1")
    assert pair.client.hints_of("t") == {}
