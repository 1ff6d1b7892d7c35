"""Dense layers, whoever computes them, against sums in float64."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.kernels.linear import Packer, TorchPacker, pack_weights
from loraplex.kernels.linear_cpu import CpuLinear
from loraplex.kernels.linear_onednn import OneDnnPacker, OneDnnWeight

TOLERANCES = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (1e-2, 1e-2)}
ROWS = (0, 1, 2, 3, 5, 6, 7, 13, 16, 63, 64, 133)
WIDTHS = ((1, 1), (7, 64), (37, 53), (577, 192), (2100, 17))
"""In and out; the last one's inputs are more than a block."""


@pytest.fixture
def kernel(any_kernels: CpuKernels) -> CpuLinear:
    return any_kernels.linear


def packers(dtype: torch.dtype, kernel: CpuLinear) -> list[Packer]:
    """All that can pack this dtype here."""
    onednn = OneDnnPacker.of(dtype)
    assert onednn or dtype is not torch.float32, "the pinned torch packs"
    return [kernel, TorchPacker(), *([onednn] if onednn else [])]


def random(*shape: int, dtype: torch.dtype) -> Tensor:
    """Numbers whose sums over a layer's inputs are about 1."""
    return (torch.randn(shape) * shape[-1] ** -0.5).to(dtype)


def expected(x: Tensor, weights: list[Tensor], bias: Tensor | None = None) -> Tensor:
    weight = torch.cat([each.double() for each in weights])
    return torch.nn.functional.linear(x.double(), weight, None if bias is None else bias.double())


def assert_right(y: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert y.dtype is dtype
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(y.double(), wanted, rtol=rtol, atol=atol)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("widths", WIDTHS)
def test_a_packed_layer_equals_the_definition(
    widths: tuple[int, int], has_bias: bool, dtype: torch.dtype, kernel: CpuLinear
) -> None:
    weight = random(widths[1], widths[0], dtype=dtype)
    bias = random(widths[1], dtype=dtype) if has_bias else None
    for packer in packers(dtype, kernel):
        packed = packer.pack([weight])
        for rows in ROWS:
            x = torch.randn(rows, widths[0]).to(dtype)
            assert_right(packed.apply(x, bias), expected(x, [weight], bias), dtype)
        assert torch.equal(packed.unpack()[0], weight)


@pytest.mark.parametrize("dtype", TOLERANCES)
@given(
    widths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    width_in=st.sampled_from([1, 3, 64, 1025]),
    rows=st.integers(0, 14),
    gaps=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_weights_side_by_side_are_one_layer_and_come_back_the_same_bits(
    dtype: torch.dtype,
    widths: list[int],
    width_in: int,
    rows: int,
    gaps: tuple[int, int],
    compiled_kernels: CpuKernels,
) -> None:
    """Rows of input and output are further apart than they are long."""
    weights = [random(width, width_in, dtype=dtype) for width in widths]
    x = torch.randn(rows, width_in + gaps[0]).to(dtype)[:, :width_in]
    for packer in packers(dtype, compiled_kernels.linear):
        packed = pack_weights(weights, packer)
        around = torch.full((rows, sum(widths) + gaps[1]), 7.0, dtype=dtype)
        assert packed.widths == tuple(widths)
        out = around[:, : sum(widths)]
        assert packed.apply(x, None, out) is out
        assert_right(out, expected(x, weights), dtype)
        assert (around[:, sum(widths) :] == 7).all()
        assert all(map(torch.equal, packed.unpack(), weights))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_rows_bits_depend_on_neither_its_batch_nor_threads(
    dtype: torch.dtype, num_threads: int, kernel: CpuLinear
) -> None:
    weight, bias = random(53, 1100, dtype=dtype), random(53, dtype=dtype)
    packed = kernel.pack([weight])
    x = torch.randn(200, 1100).to(dtype)
    with threads(1):
        alone = torch.cat([packed.apply(row[None], bias) for row in x])
    with threads(num_threads):
        for start, end in ((0, 200), (3, 5), (3, 9), (100, 117), (199, 200)):
            assert torch.equal(packed.apply(x[start:end], bias), alone[start:end])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("width_in", [64, 1100])
def test_numbers_that_are_not_finite_stay_in_their_row(
    dtype: torch.dtype, width_in: int, kernel: CpuLinear
) -> None:
    for packer in packers(dtype, kernel):
        x = torch.randn(8, width_in).to(dtype)
        x[2, 1], x[5, width_in - 1] = float("nan"), float("inf")
        y = packer.pack([random(70, width_in, dtype=dtype)]).apply(x, None)
        assert y[2].isnan().all()
        assert not y[5].isfinite().any()
        assert y[[0, 1, 3, 4, 6, 7]].isfinite().all()


def test_private_ops_of_torch_that_compute_something_else_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_bias(self: OneDnnWeight, x: Tensor, bias: Tensor | None) -> Tensor:
        return apply(self, x, None)

    assert OneDnnPacker.of(torch.float32), "the pinned torch packs"
    apply = OneDnnWeight._apply
    monkeypatch.setattr(OneDnnWeight, "_apply", without_bias)
    assert OneDnnPacker.of(torch.float32) is None


def test_what_memory_cannot_be_read_right_is_refused(kernel: CpuLinear) -> None:
    packed = kernel.pack([torch.ones(3, 4)])
    x, bias = torch.ones(2, 4), torch.ones(3)
    for wrong_x in (torch.ones(2, 5), x.double(), torch.ones(4, 2).T, x.bfloat16()):
        with pytest.raises(ValueError, match="rows must be"):
            packed.apply(wrong_x, bias)
    for wrong_out in (torch.ones(2, 4), torch.ones(1, 3), torch.ones(3, 2).T):
        with pytest.raises(ValueError, match="rows must be"):
            packed.apply(x, bias, wrong_out)
    for wrong_bias in (torch.ones(2), bias.bfloat16()):
        with pytest.raises(ValueError, match="bias"):
            packed.apply(x, wrong_bias)


def test_weights_of_other_kinds_are_refused(kernel: CpuLinear) -> None:
    for wrong in (
        [torch.ones(4, 4, dtype=torch.float16)],
        [torch.ones(4, 4), torch.ones(4, 5)],
        [torch.ones(4, 4), torch.ones(4, 4).bfloat16()],
    ):
        with pytest.raises(ValueError, match="weights must"):
            kernel.pack(wrong)
