"""Which versions have requests here: whoever asks waits until each is known."""

import asyncio

import pytest

from loraplex.platform.adapter_uses import AdapterUses


async def test_a_sweep_waits_for_requests_that_were_being_resolved_when_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uses = AdapterUses()
    with uses.use() as use:
        is_waited_for = asyncio.Event()
        wait = use.is_known.wait

        async def watched() -> bool:
            is_waited_for.set()
            return await wait()

        monkeypatch.setattr(use.is_known, "wait", watched)
        settled = asyncio.create_task(uses.settled())
        async with asyncio.timeout(60):
            await is_waited_for.wait()
        assert not settled.done()
        use.runs_on("acme/support@1")
        await settled
        assert uses.of("acme/support@1") == [use]
    assert uses.of("acme/support@1") == []


async def test_a_request_that_fails_while_it_is_resolved_is_not_waited_for() -> None:
    uses, is_here, may_fail = AdapterUses(), asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        with uses.use():
            is_here.set()
            await may_fail.wait()
            raise RuntimeError

    failing = asyncio.create_task(fail())
    async with asyncio.timeout(60):
        await is_here.wait()
        may_fail.set()
        await uses.settled()
    with pytest.raises(RuntimeError):
        await failing
