"""Low-rank updates by processes of the host are those of torch."""

from collections.abc import Iterator, Mapping

import pytest
import torch
from tests.engine.assist.made import SharedAdapters, assisting, expected

from loraplex.engine.assist.host_assist import HostAssist

LINEARS = {"q": (48, 40), "k": (16, 40), "v": (24, 40)}


def shapes(rank: int, *paths: str) -> Mapping[str, tuple[int, int, int]]:
    return {path: (*LINEARS[path], rank) for path in paths}


@pytest.fixture(scope="module")
def adapters() -> Iterator[SharedAdapters]:
    made = SharedAdapters()
    yield made
    made.close()


@pytest.fixture(scope="module", params=[1, 2, 3])
def many(request: pytest.FixtureRequest, adapters: SharedAdapters) -> Iterator[HostAssist]:
    with assisting(adapters, LINEARS, request.param) as (assist, _):
        yield assist


@pytest.fixture(scope="module")
def one(adapters: SharedAdapters) -> Iterator[HostAssist]:
    with assisting(adapters, LINEARS, 1) as (assist, _):
        yield assist


@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 133, 600])
@pytest.mark.parametrize("rank", [1, 8, 16, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("transposes_b", [False, True])
def test_updates_of_several_layers_are_torchs(
    many: HostAssist,
    adapters: SharedAdapters,
    num_rows: int,
    rank: int,
    dtype: torch.dtype,
    *,
    transposes_b: bool,
) -> None:
    adapter = adapters.make(shapes(rank, *LINEARS), dtype, transposes_b=transposes_b, seed=rank)
    x, y = torch.randn(num_rows, 40), torch.randn(num_rows, 88)
    wanted = y + torch.cat([expected(adapter, path, x) for path in LINEARS], dim=1)
    many.ask(adapter, [*LINEARS], x).add_to(y)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)
