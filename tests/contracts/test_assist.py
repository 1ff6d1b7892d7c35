"""What whoever assists passes must do: the fake, and whatever else `MAKERS` lists."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.engine.fake_assist import FakeAssist

from loraplex.adapters.effects import LoraPair
from loraplex.engine.assist_port import Assist, AssistLost

IN_WIDTH = 24
WIDTHS: Mapping[str, int] = {"q": 16, "k": 8, "v": 8}
RTOL = 1e-5


class OfTheFake:
    """Adapters are anything that has pairs."""

    def __init__(self) -> None:
        self.assist: Assist = FakeAssist(dict(WIDTHS))

    def adapter(self, paths: Sequence[str], rank: int) -> Any:
        """With an update of the layers at ``paths``, each of (out, in) as `WIDTHS` says."""
        generator = torch.Generator().manual_seed(rank)
        return SimpleNamespace(
            pairs={
                path: LoraPair(
                    torch.randn(rank, IN_WIDTH, generator=generator),
                    torch.randn(WIDTHS[path], rank, generator=generator),
                    0.5,
                )
                for path in paths
            }
        )

    def lose(self) -> None:
        """Have what was asked last never come."""
        assert isinstance(self.assist, FakeAssist)
        self.assist.lose_all()

    def close(self) -> None:
        self.assist.close()


MAKERS: Sequence[Callable[[], OfTheFake]] = (OfTheFake,)


@pytest.fixture(params=MAKERS)
def made(request: pytest.FixtureRequest) -> Iterator[OfTheFake]:
    made: OfTheFake = request.param()
    yield made
    made.close()


@pytest.mark.parametrize("num_rows", [1, 5, 133])
@pytest.mark.parametrize("touched", [("q", "k", "v"), ("k",), ("q", "v"), ()])
def test_updates_are_added_where_the_adapter_touches_a_layer(
    made: OfTheFake, num_rows: int, touched: Sequence[str]
) -> None:
    adapter = made.adapter(touched, 4)
    x, y = torch.randn(num_rows, IN_WIDTH), torch.randn(num_rows, sum(WIDTHS.values()))
    expected, first = y.clone(), 0
    for path, width in WIDTHS.items():
        if path in touched:
            pair = adapter.pairs[path]
            expected[:, first : first + width] += pair.scale * (x @ pair.a.T @ pair.b.T)
        first += width
    made.assist.ask(adapter, tuple(WIDTHS), x).add_to(y)
    torch.testing.assert_close(y, expected, rtol=RTOL, atol=RTOL)


def test_what_was_asked_may_change_before_the_answer_is_taken(made: OfTheFake) -> None:
    adapter = made.adapter(("q",), 4)
    x = torch.randn(7, IN_WIDTH)
    expected, y = torch.zeros(7, WIDTHS["q"]), torch.zeros(7, WIDTHS["q"])
    made.assist.ask(adapter, ("q",), x.clone()).add_to(expected)
    asked = made.assist.ask(adapter, ("q",), x)
    x.fill_(torch.nan)
    asked.add_to(y)
    torch.testing.assert_close(y, expected, rtol=RTOL, atol=RTOL)


def test_what_is_lost_leaves_the_output_as_it_was(made: OfTheFake) -> None:
    y = torch.randn(7, WIDTHS["q"])
    before = y.clone()
    asked = made.assist.ask(made.adapter(("q",), 4), ("q",), torch.randn(7, IN_WIDTH))
    made.lose()
    with pytest.raises(AssistLost):
        asked.add_to(y)
    assert torch.equal(y, before)


def test_nobody_can_be_asked_when_all_are_closed(made: OfTheFake) -> None:
    assert made.assist.num_ready > 0
    made.assist.close()
    assert made.assist.num_ready == 0
    with pytest.raises(AssistLost):
        made.assist.ask(made.adapter(("q",), 4), ("q",), torch.randn(7, IN_WIDTH))
