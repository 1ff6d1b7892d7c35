"""Low-rank updates by processes of the host are those of torch."""

import signal
from collections.abc import Iterator, Mapping

import pytest
import torch
from tests.engine.assist.made import assisting, expected, make

from loraplex.engine.assist.host_assist import HostAssist
from loraplex.engine.assist_port import AssistLost

LINEARS = {"q": (48, 40), "k": (16, 40), "v": (24, 40)}


def shapes(rank: int, *paths: str) -> Mapping[str, tuple[int, int, int]]:
    return {path: (*LINEARS[path], rank) for path in paths}


@pytest.fixture(scope="module", params=[1, 2, 3])
def many(request: pytest.FixtureRequest) -> Iterator[HostAssist]:
    with assisting(LINEARS, request.param) as (assist, _):
        yield assist


@pytest.fixture(scope="module")
def one() -> Iterator[HostAssist]:
    with assisting(LINEARS, 1) as (assist, _):
        yield assist


@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 133, 600])
@pytest.mark.parametrize("rank", [1, 8, 16, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("transposes_b", [False, True])
def test_updates_of_several_layers_are_torchs(
    many: HostAssist,
    num_rows: int,
    rank: int,
    dtype: torch.dtype,
    *,
    transposes_b: bool,
) -> None:
    adapter = make(shapes(rank, *LINEARS), dtype, transposes_b=transposes_b, seed=rank)
    x, y = torch.randn(num_rows, 40), torch.randn(num_rows, 88)
    wanted = y + torch.cat([expected(adapter, path, x) for path in LINEARS], dim=1)
    many.ask(adapter, [*LINEARS], x).add_to(y)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("touched", [["q"], ["k"], ["v"], ["q", "v"]])
def test_layers_that_an_adapter_does_not_touch_get_nothing(
    one: HostAssist, touched: list[str]
) -> None:
    adapter = make(shapes(4, *touched))
    x, y = torch.randn(9, 40), torch.randn(9, 88)
    parts = [
        expected(adapter, path, x) if path in touched else torch.zeros(9, out)
        for path, (out, _) in LINEARS.items()
    ]
    wanted = y + torch.cat(parts, dim=1)
    one.ask(adapter, [*LINEARS], x).add_to(y)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)


def test_an_adapter_that_touches_none_of_the_layers_leaves_every_bit(one: HostAssist) -> None:
    y = torch.tensor([[-0.0] * 40])
    one.ask(make(shapes(4, "q")), ["k", "v"], torch.randn(1, 40)).add_to(y)
    assert torch.signbit(y).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_and_outputs_may_have_16_bits(one: HostAssist, dtype: torch.dtype) -> None:
    adapter = make(shapes(8, "q"), dtype)
    x, y = torch.randn(33, 40, dtype=dtype), torch.randn(33, 48, dtype=dtype)
    wanted = (y.double() + expected(adapter, "q", x)).to(dtype)
    one.ask(adapter, ["q"], x).add_to(y)
    torch.testing.assert_close(y, wanted)


def test_rows_that_do_not_lie_beside_each_other_are_taken_as_they_are(one: HostAssist) -> None:
    adapter = make(shapes(8, "q"))
    x, y = torch.randn(40, 20).T, torch.zeros(48, 20).T
    one.ask(adapter, ["q"], x).add_to(y)
    torch.testing.assert_close(y.double(), expected(adapter, "q", x), rtol=1e-5, atol=1e-5)


def test_more_rows_than_ever_before_find_room(one: HostAssist) -> None:
    adapter = make(shapes(2, "q"))
    for num_rows in (1, 20_000, 3):
        x, y = torch.randn(num_rows, 40), torch.zeros(num_rows, 48)
        one.ask(adapter, ["q"], x).add_to(y)
        torch.testing.assert_close(y.double(), expected(adapter, "q", x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_read_are_the_hosts_pages_each_time(one: HostAssist, dtype: torch.dtype) -> None:
    adapter = make(shapes(8, "q"), dtype)
    x, y = torch.randn(5, 40), torch.zeros(5, 48)
    one.ask(adapter, ["q"], x).add_to(y)
    assert y.isfinite().all()
    adapter.pairs.data.fill_(torch.nan)
    one.ask(adapter, ["q"], x).add_to(y)
    assert y.isnan().all()


def test_an_adapter_whose_pages_cannot_be_shared_is_refused(one: HostAssist) -> None:
    adapter = make(shapes(2, "q"), is_shared=False)
    with pytest.raises(AssistLost, match="shared"):
        one.ask(adapter, ["q"], torch.ones(1, 40))


def test_an_answer_that_nobody_took_is_not_taken_for_that_of_the_next_question(
    one: HostAssist,
) -> None:
    adapter = make(shapes(8, "q", "k"))
    first = one.ask(adapter, ["q"], torch.ones(30, 40))
    x, y = torch.randn(20, 40), torch.zeros(20, 16)
    one.ask(adapter, ["k"], x).add_to(y)
    torch.testing.assert_close(y.double(), expected(adapter, "k", x), rtol=1e-5, atol=1e-5)
    untouched = torch.zeros(30, 48)
    with pytest.raises(AssistLost, match="another question"):
        first.add_to(untouched)
    assert not untouched.any()


def test_what_is_still_computed_of_a_question_that_was_given_up_spoils_no_later_one(
    one: HostAssist,
) -> None:
    adapter = make(shapes(8, "q", "k"))
    (assistant,) = one.watch.ready
    signal.pidfd_send_signal(assistant.ended, signal.SIGSTOP)
    one.ask(adapter, ["q", "k"], torch.ones(100, 40))
    x, y = torch.randn(200, 40), torch.zeros(200, 64)
    asked = one.ask(adapter, ["q", "k"], x)
    signal.pidfd_send_signal(assistant.ended, signal.SIGCONT)
    asked.add_to(y)
    wanted = torch.cat([expected(adapter, path, x) for path in ("q", "k")], dim=1)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)
