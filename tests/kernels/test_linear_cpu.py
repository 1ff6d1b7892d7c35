"""Packed dense layers, against torch's own."""

import pytest
import torch

from loraplex.kernels.linear_cpu import pack_weight


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 63, 64, 65, 133, 192])
@pytest.mark.parametrize("widths", [(1, 1), (37, 53), (576, 192)])
def test_a_packed_layer_equals_torchs(rows: int, widths: tuple[int, int], has_bias: bool) -> None:
    torch.manual_seed(rows)
    weight, x = torch.randn(widths[1], widths[0]), torch.randn(rows, widths[0])
    bias = torch.randn(widths[1]) if has_bias else None
    packed = pack_weight(weight)
    assert packed is not None, "the pinned torch packs"
    expected = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    torch.testing.assert_close(packed.apply(x, bias).double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_would_gain_nothing_is_not_packed(dtype: torch.dtype) -> None:
    assert pack_weight(torch.ones(4, 4, dtype=dtype)) is None


def test_numbers_that_are_not_finite_stay_in_their_row() -> None:
    packed = pack_weight(torch.randn(64, 64))
    assert packed is not None
    x = torch.randn(5, 64)
    x[2, 1] = float("nan")
    y = packed.apply(x, None)
    assert y[2].isnan().all()
    assert y[[0, 1, 3, 4]].isfinite().all()
