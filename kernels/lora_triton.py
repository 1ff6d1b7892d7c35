"""Low-rank updates on a GPU: two launches for each module, whatever adapters the rows have."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from loraplex.kernels.segments import FEW_ROWS, ModuleSegments

_BLOCK_R = 16  # the smallest side of a tile that tensor cores multiply
_MAX_BLOCK_R = 64
_BLOCK_K = 128
_MAX_SPLITS = 16


def add_lora_triton(y: Tensor, x: Tensor, segments: ModuleSegments) -> None:
    """Add each segment's update to its rows of ``y``, in place, as ``add_lora`` defines it.

    Steps of few rows make few programs, so the sum over ``in`` is shared between some.  Their
    partial sums are kept in float32 and added in order: unlike atomic additions that gives the
    same bits each time.  What a row's sum adds in which order follows from ``in``, its own rank
    and ``chunk_rows``, never from other rows.

    Nothing here waits for the device.  The scratch comes from torch's allocator, which hands the
    same memory to one module after the other.

    Args:
        y: ``[rows, out]``, float32, bfloat16 or float16; elements of a row are adjacent.
        x: ``[rows, in]``, same dtype and device as ``y``.
        segments: weights in the dtype of ``y``, on its device.

    Raises:
        ValueError: the three do not fit together.
    """
    _check(y, x, segments)
    x = x if x.stride(1) == 1 else x.contiguous()
    chunks, chunk_rows = segments.step.chunks, segments.step.chunk_rows
    num_chunks, in_width, out_width = len(chunks), x.shape[1], y.shape[1]
    split_width = _split_width(in_width, chunk_rows)
    splits = triton.cdiv(in_width, split_width)
    h_width = triton.cdiv(segments.max_rank, _BLOCK_R) * _BLOCK_R
    h = y.new_empty((splits, len(y), h_width), dtype=torch.float32)
    block_r = min(triton.next_power_of_2(h_width), _MAX_BLOCK_R)
    scratch_strides = h.stride(1), h.stride(0)
    shrink[num_chunks, triton.cdiv(h_width, block_r), splits](
        *(h, x, chunks, segments.module, in_width, x.stride(0), *scratch_strides, split_width),
        BLOCK_M=chunk_rows,
        BLOCK_R=block_r,
        BLOCK_K=_BLOCK_K // 2 if x.dtype is torch.float32 else _BLOCK_K,
        # Triton's interpreter multiplies bfloat16 wrong.
        UPCAST=knobs.runtime.interpret and x.dtype is torch.bfloat16,
        enable_fp_fusion=True,
    )
    block_n = 128 if chunk_rows == FEW_ROWS else 64
    expand[num_chunks, triton.cdiv(out_width, block_n)](
        *(y, h, chunks, segments.module, out_width, y.stride(0), *scratch_strides),
        SPLITS=splits,
        BLOCK_M=chunk_rows,
        BLOCK_R=_BLOCK_R,
        BLOCK_N=block_n,
        # Numbers of 16 bits are exact in TF32, and three terms give `h` its 24 bits.
        PRECISION="ieee" if y.dtype is torch.float32 else "tf32x3",
        enable_fp_fusion=True,
        num_stages=2,
    )


def _split_width(in_width: int, chunk_rows: int) -> int:
    """Return how much of the sum over ``in`` one program takes, a multiple of ``_BLOCK_K``."""
    wanted: int = 512 if chunk_rows == FEW_ROWS else 2048  # the fewer rows, the fewer chunks
    least: int = triton.cdiv(in_width, _MAX_SPLITS * _BLOCK_K) * _BLOCK_K
    return max(wanted, least)


def _check(y: Tensor, x: Tensor, segments: ModuleSegments) -> None:
    if not y.dtype is x.dtype is segments.dtype:
        raise ValueError(f"y is {y.dtype}, x {x.dtype}, weights {segments.dtype}; they must agree")
    if len(y) != len(x) or len(y) < segments.step.end:
        raise ValueError(f"y has {len(y)} rows, x {len(x)}, segments end at {segments.step.end}")
    if y.stride(1) != 1:
        raise ValueError(f"elements of a row of y must be adjacent, not {y.stride(1)} apart")


@triton.jit(do_not_specialize=["module"])
def shrink(
    h,  # float32 [SPLITS, rows, h_width]
    x,  # [rows, in_width]
    chunks,  # int64 [chunks, 3]
    module,
    in_width,
    x_stride,
    h_width,
    split_stride,
    split_width,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Write ``h[s, i, r] = sum of x[i, k] * a[r, k]`` over the ``k`` of split ``s``.

    A program takes the rows of one chunk, ``BLOCK_R`` ranks and one split.
    """
    chunk = chunks + 3 * tl.program_id(0)
    start = tl.load(chunk + 1)
    end = tl.load(chunk + 2)
    if start >= end:
        return
    entry = tl.load(chunk).to(tl.pointer_type(tl.int64)) + 4 * module
    rank = tl.load(entry + 2)
    if tl.program_id(1) * BLOCK_R >= rank:
        return
    a = tl.multiple_of(tl.load(entry).to(tl.pointer_type(x.dtype.element_ty)), 16)
    i = start + tl.arange(0, BLOCK_M)
    r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    split = tl.program_id(2).to(tl.int64)
    first = split * split_width
    total = tl.full((BLOCK_M, BLOCK_R), 0.0, tl.float32)
    for block in range(first, min(first + split_width, in_width), BLOCK_K):
        k = block + tl.arange(0, BLOCK_K)
        x_mask = (i[:, None] < end) & (k[None, :] < in_width)
        a_mask = (r[:, None] < rank) & (k[None, :] < in_width)
        x_tile = tl.load(x + i[:, None] * x_stride + k[None, :], x_mask, 0)
        a_tile = tl.load(a + r[:, None].to(tl.int64) * in_width + k[None, :], a_mask, 0)
        if UPCAST:
            x_tile = x_tile.to(tl.float32)
            a_tile = a_tile.to(tl.float32)
        total = tl.dot(x_tile, tl.trans(a_tile), total, input_precision="ieee")
    h_tile = h + split * split_stride + i[:, None] * h_width + r[None, :]
    tl.store(h_tile, total, (i[:, None] < end) & (r[None, :] < rank))


@triton.jit(do_not_specialize=["module"])
def expand(
    y,  # [rows, out_width]
    h,  # float32 [SPLITS, rows, h_width]
    chunks,  # int64 [chunks, 3]
    module,
    out_width,
    y_stride,
    h_width,
    split_stride,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add ``scale * sum over r of (sum over s of h[s, i, r]) * b[o, r]`` to ``y[i, o]``.

    A program takes the rows of one chunk and ``BLOCK_N`` outputs.
    """
    chunk = chunks + 3 * tl.program_id(0)
    start = tl.load(chunk + 1)
    end = tl.load(chunk + 2)
    if start >= end:
        return
    entry = tl.load(chunk).to(tl.pointer_type(tl.int64)) + 4 * module
    rank = tl.load(entry + 2)
    if rank == 0:
        return
    b = tl.multiple_of(tl.load(entry + 1).to(tl.pointer_type(y.dtype.element_ty)), 16)
    scale = tl.load(entry + 3).to(tl.int32).to(tl.float32, bitcast=True)
    i = start + tl.arange(0, BLOCK_M)
    o = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for block in range(0, rank, BLOCK_R):
        r = block + tl.arange(0, BLOCK_R)
        h_mask = (i[:, None] < end) & (r[None, :] < rank)
        b_mask = (o[:, None] < out_width) & (r[None, :] < rank)
        h_tile = tl.full((BLOCK_M, BLOCK_R), 0.0, tl.float32)
        partial = h + i[:, None] * h_width + r[None, :]
        for _ in tl.static_range(SPLITS):
            h_tile += tl.load(partial, h_mask, 0)
            partial += split_stride
        b_tile = tl.load(b + o[:, None].to(tl.int64) * rank + r[None, :], b_mask, 0)
        total = tl.dot(h_tile, tl.trans(b_tile.to(tl.float32)), total, input_precision=PRECISION)
    y_tile = y + i[:, None] * y_stride + o[None, :]
    y_mask = (i[:, None] < end) & (o[None, :] < out_width)
    updated = tl.load(y_tile, y_mask, 0).to(tl.float32) + scale * total
    tl.store(y_tile, updated.to(y.dtype.element_ty), y_mask)
