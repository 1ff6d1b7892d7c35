"""What every `Assist` does."""

from collections.abc import Iterator

import pytest
import torch
from tests.engine.assist.made import assisting, expected, make
from tests.engine.fake_assist import FakeAssist

from loraplex.engine.assist_port import Assist, AssistLost

LINEARS = {"q": (48, 40), "k": (16, 40), "v": (24, 40), "o": (40, 48)}
PAIRS = {"q": (48, 40, 4), "v": (24, 40, 8), "o": (40, 48, 1)}


@pytest.fixture(scope="module", params=["fake", "processes"])
def assist(request: pytest.FixtureRequest) -> Iterator[Assist]:
    if request.param == "fake":
        yield FakeAssist({path: out for path, (out, _) in LINEARS.items()})
    else:
        with assisting(LINEARS, 2) as (processes, _):
            yield processes


@pytest.mark.parametrize("transposes_b", [False, True])
@pytest.mark.parametrize("num_rows", [1, 50])
def test_updates_of_layers_of_one_input_come_side_by_side(
    assist: Assist, num_rows: int, *, transposes_b: bool
) -> None:
    adapter = make(PAIRS, transposes_b=transposes_b)
    x, y = torch.randn(num_rows, 40), torch.randn(num_rows, 88)
    parts = [expected(adapter, "q", x), torch.zeros(num_rows, 16), expected(adapter, "v", x)]
    wanted = y + torch.cat(parts, dim=1)
    assist.ask(adapter, ["q", "k", "v"], x).add_to(y)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)


def test_what_the_input_becomes_after_it_was_asked_for_does_not_matter(assist: Assist) -> None:
    adapter, x, y = make(PAIRS), torch.ones(3, 48), torch.zeros(3, 40)
    wanted = expected(adapter, "o", x)
    asked = assist.ask(adapter, ["o"], x)
    x.fill_(torch.nan)
    asked.add_to(y)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)


def test_tensors_of_inference_mode_are_taken_and_changed_outside_of_it(assist: Assist) -> None:
    adapter = make(PAIRS)
    with torch.inference_mode():
        x, y = torch.ones(3, 48), torch.zeros(3, 40)
    assist.ask(adapter, ["o"], x).add_to(y)
    torch.testing.assert_close(y.double(), expected(adapter, "o", x), rtol=1e-5, atol=1e-5)


def test_an_output_may_be_columns_of_a_wider_one(assist: Assist) -> None:
    adapter, x, wide = make(PAIRS), torch.randn(3, 48), torch.zeros(3, 50)
    assist.ask(adapter, ["o"], x).add_to(wide[:, 5:45])
    torch.testing.assert_close(
        wide[:, 5:45].double(), expected(adapter, "o", x), rtol=1e-5, atol=1e-5
    )
    assert not wide[:, :5].any()
    assert not wide[:, 45:].any()


@pytest.mark.parametrize("kind", ["fake", "processes"])
def test_once_closed_nobody_can_be_asked(kind: str) -> None:
    assist: Assist = FakeAssist({"o": 40})
    if kind == "processes":
        with assisting(LINEARS, 1) as (assist, _):
            assert assist.num_ready == 1
    assist.close()
    assert assist.num_ready == 0
    with pytest.raises(AssistLost):
        assist.ask(make(PAIRS), ["o"], torch.ones(1, 48))
