"""An adapter's first requests, compared with PEFT and with the plain computation."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from tests import tiny_models
from tests.engine.self_test.world import Options, World, running

from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.errors import AdapterOverCap, EngineUnavailable
from loraplex.engine.protocol import Sampling, Submit, Tokens
from loraplex.engine.residency_protocol import Pins
from loraplex.engine.runner import ModelRunner


def scaled(factor: float, rank: int | None = None) -> Callable[[AdapterWeights], AdapterWeights]:
    """Spoils the scale of adapters, or of those of one rank."""

    def spoil(weights: AdapterWeights) -> AdapterWeights:
        pairs = {
            path: replace(pair, scale=factor * pair.scale)
            if rank in (None, pair.a.shape[0])
            else pair
            for path, pair in weights.pairs.items()
        }
        return replace(weights, pairs=pairs)

    return spoil


def request(request_id: str, adapter: str | None, num_tokens: int = 60) -> Submit:
    return Submit(
        request_id=request_id,
        tenant="other",
        adapter=adapter,
        prompt=tuple(range(10, 50)),
        sampling=Sampling(max_tokens=num_tokens, temperature=0.0, seed=0, ignore_eos=True),
    )


async def run(world: World, submit: Submit) -> list[int]:
    events = [event async for event in world.client.generate(submit)]
    return [token for event in events if isinstance(event, Tokens) for token in event.ids]


async def test_peft_passes_what_is_served_right_and_finds_another_scale(
    runner: ModelRunner, adapter: Path, other_adapter: Path, tmp_path: Path
) -> None:
    async with running(runner, tmp_path, Options(spoil=scaled(2, rank=3))) as world:
        right = await world.verify(adapter, may_use_peft=True)
        wrong = await world.verify(other_adapter, may_use_peft=True)
    assert right.passed, right
    assert (right.method, right.detail) == ("peft", "")
    assert right.versions.keys() == {"peft", "torch", "transformers"}
    assert right.max_abs_logprob_diff <= right.tolerance < 0.01
    assert wrong.method == "peft"
    assert not wrong.passed
    assert wrong.max_abs_logprob_diff > wrong.tolerance


async def test_an_adapter_that_is_served_right_passes(
    runner: ModelRunner, adapter: Path, tmp_path: Path
) -> None:
    async with running(runner, tmp_path) as world:
        report = await world.verify(adapter)
    assert report.passed, report
    assert (report.method, report.detail) == ("reference", "")
    assert report.num_tokens == 24
    assert report.num_compared > 12
    assert report.max_abs_logprob_diff <= report.tolerance < 0.01
    assert report.changes_output
    assert report.versions.keys() == {"torch"}


async def test_an_adapter_that_is_served_at_another_scale_is_found(
    runner: ModelRunner, adapter: Path, tmp_path: Path
) -> None:
    async with running(runner, tmp_path, Options(spoil=scaled(1.05))) as world:
        report = await world.verify(adapter)
        text = world.metrics()
    assert not report.passed
    assert report.max_abs_logprob_diff > report.tolerance
    assert "as served" in report.detail
    assert 'loraplex_self_tests_total{method="reference",result="mismatch"} 1.0' in text


async def test_numbers_that_are_not_finite_are_no_answer(
    runner: ModelRunner, adapter: Path, tmp_path: Path
) -> None:
    async with running(runner, tmp_path, Options(spoil=scaled(inf))) as world:
        report = await world.verify(adapter)
    assert not report.passed
    assert "not finite" in report.detail


@pytest.mark.parametrize(
    ("options", "caps", "error", "told"),
    [
        (Options(), {"acme": 1}, AdapterOverCap, r"may hold 1 \(adapter_cap_bytes\)"),
        (Options(adapter_bytes=1), {}, EngineUnavailable, "could not be tested: .* promised"),
    ],
)
async def test_what_the_worker_may_not_or_cannot_hold_is_not_compared(
    runner: ModelRunner,
    adapter: Path,
    tmp_path: Path,
    options: Options,
    caps: dict[str, int],
    error: type[Exception],
    told: str,
) -> None:
    async with running(runner, tmp_path, options) as world:
        world.client.pin(Pins(version=1, pinned=(), floors={}, caps=caps))
        with pytest.raises(error, match=told):
            await world.verify(adapter)


async def test_an_adapter_that_changes_nothing_passes_and_is_told(
    runner: ModelRunner, model_folder: Path, tmp_path: Path
) -> None:
    nothing = tiny_models.save_adapter(
        tmp_path / "nothing", model_folder, strength=0.0, r=2, target_modules=["q_proj"]
    )
    async with running(runner, tmp_path) as world:
        report = await world.verify(nothing)
    assert report.passed
    assert not report.changes_output
    assert report.max_abs_change == 0
    assert "changes nothing" in report.detail


async def test_what_is_not_stored_cannot_be_tested(runner: ModelRunner, tmp_path: Path) -> None:
    async with running(runner, tmp_path) as world:
        with pytest.raises(EngineUnavailable, match="operator's log"):
            await world.client.verify("acme", "0" * 64)
        assert 'loraplex_self_tests_total{method="none",result="failed"} 1.0' in world.metrics()


async def test_tests_that_come_at_once_are_made_one_after_the_other(
    runner: ModelRunner, adapter: Path, other_adapter: Path, tmp_path: Path
) -> None:
    async with running(runner, tmp_path) as world:
        reports = await asyncio.gather(
            *(world.verify(each) for each in (adapter, other_adapter, adapter))
        )
        most = max(report.plan.num_requests for report in world.reports)
    assert all(report.passed for report in reports)
    assert most == 3, "the prompts of one test run together, and no other's"


async def test_a_tenant_s_test_waits_for_one_of_another_tenant_s_and_not_for_all(
    runner: ModelRunner, adapter: Path, tmp_path: Path
) -> None:
    ended: list[str] = []

    async def verify(world: World, tenant: str, digest: str) -> None:
        assert (await world.client.verify(tenant, digest, may_use_peft=False)).passed
        ended.append(tenant)

    async with running(runner, tmp_path) as world:
        digest = world.put(adapter)
        tenants = ("many", "many", "many", "many", "one")
        await asyncio.gather(*(verify(world, tenant, digest) for tenant in tenants))
    assert ended.index("one") <= 2


async def test_requests_of_others_run_on_as_if_there_were_no_test(
    runner: ModelRunner, adapter: Path, other_adapter: Path, tmp_path: Path
) -> None:
    async with running(runner, tmp_path) as world:
        digest = world.put(other_adapter)
        submits = [request("base", None), request("adapted", digest)]
        alone = [await run(world, submit) for submit in submits]
        again = [replace_id(submit) for submit in submits]
        others = asyncio.gather(*(run(world, submit) for submit in again))
        report = await world.verify(adapter)
        assert await others == alone
        shared = max(report.plan.num_adapters for report in world.reports)
    assert report.passed
    assert shared == 2, "the test has not shared a step with the other's adapter"


def replace_id(submit: Submit) -> Submit:
    return Submit(
        request_id=f"{submit.request_id} again",
        tenant=submit.tenant,
        adapter=submit.adapter,
        prompt=submit.prompt,
        sampling=submit.sampling,
    )


@pytest.mark.parametrize(("patience_s", "tier"), [(60.0, "flex"), (0.0, "default")])
async def test_a_test_takes_what_others_leave_until_it_has_waited_long_enough(
    runner: ModelRunner,
    adapter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    patience_s: float,
    tier: str,
) -> None:
    async with running(runner, tmp_path, Options(patience_s=patience_s)) as world:
        submitted: list[Submit] = []
        put = world.mailbox.put

        def note(*messages: object) -> None:
            submitted.extend(each for each in messages if isinstance(each, Submit))
            put(*messages)

        monkeypatch.setattr(world.served, "_put", note)
        report = await world.verify(adapter)
    assert report.passed
    assert {submit.service_tier for submit in submitted[-3:]} == {tier}
    assert {submit.tenant for submit in submitted} == {"acme"}
