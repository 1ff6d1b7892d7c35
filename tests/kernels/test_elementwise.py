"""The ops between matrix products and attention, against plain torch."""

from itertools import product

import pytest
import torch
from torch import Tensor

from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.kernels.elementwise import Activation, CpuElementwise, Norm
from loraplex.kernels.elementwise_reference import (
    add_norm_reference,
    gated_reference,
    rms_norm_reference,
    rotary_reference,
)

DTYPES = (torch.float32, torch.bfloat16)
TOLERANCES = {torch.float32: (2e-6, 2e-6), torch.bfloat16: (8e-3, 1e-6)}
"""Relative and absolute; in bfloat16 one unit of the last place, of a sum that was rounded."""
ROWS = (1, 2, 7)
WIDTHS = (1, 7, 31, 64, 133)
DIMS = (2, 6, 64, 80)


@pytest.fixture
def ops(any_kernels: CpuKernels) -> CpuElementwise:
    return any_kernels.elementwise


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(5)


def assert_close(found: Tensor, expected: Tensor) -> None:
    relative, absolute = TOLERANCES[expected.dtype]
    torch.testing.assert_close(found, expected, rtol=relative, atol=absolute)


def make_norm(width: int, *, rounds_first: bool = True) -> Norm:
    return Norm(1 + torch.randn(width) / 3, 1e-5, rounds_first)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_norm_equals_the_reference_at_any_width_and_scale(
    ops: CpuElementwise, width: int, dtype: torch.dtype
) -> None:
    for rows, rounds_first, scale in product(ROWS, (False, True), (1e-3, 1.0, 100.0)):
        x = (torch.randn(rows, width) * scale).to(dtype)
        norm = make_norm(width, rounds_first=rounds_first)
        assert_close(ops.rms_norm(x, norm), rms_norm_reference(x, norm))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_residuals_are_added_and_normalised_as_in_the_reference(
    ops: CpuElementwise, scale: float, width: int, dtype: torch.dtype
) -> None:
    norms = (None, make_norm(width), make_norm(width, rounds_first=False))
    for rows, before, after in product(ROWS, norms, norms):
        x, residual = torch.randn(rows, width).to(dtype), torch.randn(rows, width).to(dtype)
        kept = residual.clone()
        h, y = ops.add_norm(x, residual, scale, before, after)
        expected_h, expected_y = add_norm_reference(x, residual, scale, before, after)
        # A norm that rounds another way may move a sum by the last place of what was added.
        torch.testing.assert_close(h, expected_h, rtol=8e-3, atol=4 * torch.finfo(dtype).eps)
        assert_close(y, expected_y if after is None else rms_norm_reference(h, after))
        assert torch.equal(residual, kept)


@pytest.mark.parametrize("dtypes", [*zip(DTYPES, DTYPES, strict=True), DTYPES[::-1]], ids=str)
@pytest.mark.parametrize("dim", DIMS)
def test_heads_are_turned_as_in_the_reference_where_they_lie(
    ops: CpuElementwise, dim: int, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    dtype, table_dtype = dtypes
    eps = torch.finfo(dtype).eps
    norms = (None, make_norm(dim), make_norm(3 * dim, rounds_first=False))
    for rows, rotated, norm in product(ROWS, {dim, max(2, dim // 4 * 2)}, norms):
        wide = torch.randn(rows, 4 * dim + 5).to(dtype)
        before = wide.clone()
        q = wide[:, 2 : 2 + 3 * dim].view(rows, 3, dim)
        k = wide[:, 4 + 3 * dim : 4 + 4 * dim].view(rows, 1, dim)
        cos, sin = torch.randn(2, 1, rows, rotated).to(table_dtype)
        k_norm = make_norm(dim) if norm else None
        expected_q = rotary_reference(q, cos[0], sin[0], norm)
        expected_k = rotary_reference(k, cos[0], sin[0], k_norm)
        ops.rotary(q, k, cos, sin, norm, k_norm)
        torch.testing.assert_close(q, expected_q, rtol=2 * eps, atol=8 * eps)
        torch.testing.assert_close(k, expected_k, rtol=2 * eps, atol=8 * eps)
        between = [0, 1, 2 + 3 * dim, 3 + 3 * dim, 4 + 4 * dim]
        assert torch.equal(wide[:, between], before[:, between])


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_gates_equal_the_reference_in_any_layout(
    ops: CpuElementwise, width: int, dtype: torch.dtype, activation: Activation
) -> None:
    for rows, scale in product(ROWS, (1e-3, 1.0, 30.0)):
        wide = (torch.randn(rows, 2 * width + 3) * scale).to(dtype)
        gate, up = wide[:, :width], wide[:, width + 3 :]
        found = ops.gated(gate[None], up[None], activation)[0]
        expected = gated_reference(gate, up, activation)
        relative, absolute = TOLERANCES[dtype]
        torch.testing.assert_close(found, expected, rtol=relative, atol=absolute * scale**2)


@pytest.mark.parametrize("activation", [Activation.SILU, Activation.GELU_TANH])
def test_gates_are_right_over_the_whole_range_of_numbers(
    ops: CpuElementwise, activation: Activation
) -> None:
    gate = torch.cat([torch.linspace(-120, 120, 9601), torch.tensor([-3e38, -1e-30, 0.0, 3e38])])
    gate, up = gate[None, None], torch.ones(1, 1, len(gate))
    found = ops.gated(gate, up, activation)
    expected = gated_reference(gate, up, activation)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_alone_and_in_a_batch_on_any_number_of_threads(
    ops: CpuElementwise, dtype: torch.dtype
) -> None:
    rows, heads, dim = 160, 6, 38
    width, norm = heads * dim, make_norm(heads * dim)
    x, residual = torch.randn(2, 1, rows, width).to(dtype)
    cos, sin = torch.randn(2, 1, rows, dim).to(dtype)

    def compute(own: slice) -> list[Tensor]:
        q, k = x[:, own].clone(), residual[:, own].clone()
        heads_of_both = (q.view(-1, heads, dim), k.view(-1, heads, dim))
        ops.rotary(*heads_of_both, cos[:, own], sin[:, own], norm)
        return [
            q,
            k,
            ops.rms_norm(x[:, own], norm),
            *ops.add_norm(x[:, own], residual[:, own], 0.5, norm, norm),
            ops.gated(x[:, own], residual[:, own], Activation.SILU),
        ]

    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    together = compute(slice(None))
    torch.set_num_threads(1)
    alone = [compute(slice(row, row + 1)) for row in range(rows)]
    torch.set_num_threads(num_threads)
    for place, found in enumerate(together):
        assert torch.equal(found, torch.cat([each[place] for each in alone], dim=1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_that_are_not_finite_stay_in_their_row(
    ops: CpuElementwise, dtype: torch.dtype
) -> None:
    x = torch.randn(2, 24).to(dtype)
    x[0, 3] = float("nan")
    norm, other = make_norm(24), torch.ones(2, 24, dtype=dtype)
    turned = x.clone()
    ops.rotary(turned.view(2, 1, 24), other.view(2, 1, 24), other, other, norm)
    found = [ops.rms_norm(x, norm), *ops.add_norm(x, other, after=norm)[1:], turned]
    for y in found:
        assert y[0].isnan().all()
        assert y[1].isfinite().all()
    for activation in Activation:
        (y,) = ops.gated(x[None], torch.ones_like(x)[None], activation)
        assert y[0].isnan().nonzero().tolist() == [[3]]
        assert y[1].isfinite().all()


def test_what_would_be_read_or_written_wrong_is_refused(ops: CpuElementwise) -> None:
    x = torch.randn(4, 24)
    heads, other = x.view(4, 2, 12), torch.randn(4, 1, 12)
    tables = torch.randn(2, 1, 4, 12)
    for call in (
        lambda: ops.rms_norm(x, make_norm(23)),
        lambda: ops.add_norm(x, x[:3]),
        lambda: ops.add_norm(x, x.bfloat16()),
        lambda: ops.add_norm(x, x, after=make_norm(25)),
        lambda: ops.rotary(heads, other, *tables[:, :, :3]),
        lambda: ops.rotary(heads, other[:3], *tables),
        lambda: ops.rotary(heads.transpose(1, 2), other, *tables),
        lambda: ops.rotary(x.view(4, 3, 8), x.view(4, 3, 8), *tables),
        lambda: ops.rotary(heads, other, tables[0], tables[1].bfloat16()),
        lambda: ops.rotary(heads.bfloat16(), other, *tables),
        lambda: ops.rotary(heads, other, *tables, make_norm(7)),
        lambda: ops.gated(x[None], x[None, :, :7], Activation.SILU),
        lambda: ops.gated(x.T[None], x.T[None], Activation.SILU),
    ):
        with pytest.raises(ValueError, match=r"another width|added to|turn|side|differ|must"):
            call()
