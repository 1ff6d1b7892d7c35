"""Low-rank updates on a GPU: two launches for modules that share an input, any adapters."""

import math

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

    Modules that see one ``x`` share both launches, each with columns of ``y`` of its own.

    Steps of few rows make few programs, so the sum over ``in`` is shared between some.  Their
    partial sums are kept in float32 and added in order: unlike atomic additions that gives the
    same bits each time.  What a row's sum adds in which order follows from ``in``, its own rank
    and ``chunk_rows``, never from other rows.

    Nothing here waits for the device.  The scratch comes from torch's allocator, which hands the
    same memory to one module after the other.  Launches are sized by the number of chunks and by
    ``max_rank``, so that chunks may be rewritten between replays of a graph; see
    ``SegmentBuffers``.

    Args:
        y: ``[rows, out]``, float32, bfloat16 or float16; elements of a row are adjacent.
        x: ``[rows, in]``, same dtype and device as ``y``.
        segments: weights in the dtype of ``y``, on its device.

    Raises:
        ValueError: the three do not fit together.
    """
    _check(y, x, segments)
    x = x if x.stride(1) == 1 else x.contiguous()
    chunks, chunk_rows, slices = segments.step.chunks, segments.step.chunk_rows, segments.slices
    num_chunks, in_width = len(chunks), x.shape[1]
    split_width = _split_width(in_width, chunk_rows)
    splits = triton.cdiv(in_width, split_width)
    h_width = triton.cdiv(segments.max_rank, _BLOCK_R) * _BLOCK_R
    h = y.new_empty((splits, len(y), len(slices), h_width), dtype=torch.float32)
    if h_width:
        block_r = min(triton.next_power_of_2(h_width), _MAX_BLOCK_R)
        rank_blocks = triton.cdiv(h_width, block_r)
        shrink[num_chunks, len(slices) * rank_blocks, splits](
            *(h, x, chunks, slices.table, in_width, x.stride(0)),
            *(h_width, h.stride(1), h.stride(0), split_width),
            BLOCK_M=chunk_rows,
            BLOCK_R=block_r,
            BLOCK_K=_BLOCK_K // 2 if x.dtype is torch.float32 else _BLOCK_K,
            RANK_BLOCKS=rank_blocks,
            # Triton's interpreter multiplies bfloat16 wrong.
            UPCAST=knobs.runtime.interpret and x.dtype is torch.bfloat16,
            enable_fp_fusion=True,
        )
    block_n = 128 if chunk_rows == FEW_ROWS else 64
    expand[num_chunks, sum(triton.cdiv(width, block_n) for width in slices.widths)](
        *(y, h, chunks, slices.table, y.stride(0), h_width, h.stride(1), h.stride(0)),
        SLICES=len(slices),
        SPLITS=splits,
        BLOCK_M=chunk_rows,
        BLOCK_R=_BLOCK_R,
        BLOCK_N=block_n,
        UNIT=math.gcd(16, *slices.offsets, *slices.widths),  # what columns are multiples of
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
    widths = segments.slices.width, segments.slices.in_width
    if (y.shape[1], x.shape[1]) != widths:
        raise ValueError(
            f"rows of y have {y.shape[1]} columns, of x {x.shape[1]}; the modules have {widths}"
        )
    if len(y) != len(x) or len(y) < segments.step.end:
        raise ValueError(f"y has {len(y)} rows, x {len(x)}, segments end at {segments.step.end}")
    if y.stride(1) != 1:
        raise ValueError(f"elements of a row of y must be adjacent, not {y.stride(1)} apart")


@triton.jit
def shrink(
    h,  # float32 [splits, rows, slices, h_width]
    x,  # [rows, in_width]
    chunks,  # int64 [chunks, 3]
    slices,  # int64 [slices, 3]
    in_width,
    x_stride,
    h_width,
    h_stride,
    split_stride,
    split_width,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RANK_BLOCKS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Write ``h[s, i, j, r] = sum of x[i, k] * a[r, k]`` over the ``k`` of split ``s``, with the
    ``a`` of slice ``j``.

    A program takes the rows of one chunk, ``BLOCK_R`` ranks of one slice and one split.
    """
    chunk = chunks + 3 * tl.program_id(0)
    start = tl.load(chunk + 1)
    end = tl.load(chunk + 2)
    if start >= end:
        return
    of_slice = tl.program_id(1) // RANK_BLOCKS
    module = tl.load(slices + 3 * of_slice)
    entry = tl.load(chunk).to(tl.pointer_type(tl.int64)) + 6 * module
    rank = tl.load(entry + 2)
    first_rank = tl.program_id(1) % RANK_BLOCKS * BLOCK_R
    if first_rank >= rank:
        return
    a = tl.multiple_of(tl.load(entry).to(tl.pointer_type(x.dtype.element_ty)), 16)
    i = start + tl.arange(0, BLOCK_M)
    r = first_rank + tl.arange(0, BLOCK_R)
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
    h_row = h + split * split_stride + i * h_stride + of_slice * h_width
    tl.store(h_row[:, None] + r[None, :], total, (i[:, None] < end) & (r[None, :] < rank))


@triton.jit
def expand(
    y,  # [rows, columns of all slices]
    h,  # float32 [SPLITS, rows, SLICES, h_width]
    chunks,  # int64 [chunks, 3]
    slices,  # int64 [SLICES, 3]
    y_stride,
    h_width,
    h_stride,
    split_stride,
    SLICES: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Turn ``y[i, o]`` of slice ``j`` into ``gain[o] * (y[i, o] + scale * update) + offset[o]``
    with ``update = sum over r of (sum over s of h[s, i, j, r]) * b[o, r]``.

    A program takes the rows of one chunk and ``BLOCK_N`` outputs of one slice.
    """
    chunk = chunks + 3 * tl.program_id(0)
    start = tl.load(chunk + 1)
    end = tl.load(chunk + 2)
    if start >= end:
        return
    of_slice, first = slice_of_tile(slices, tl.program_id(1), SLICES, BLOCK_N)
    width = tl.multiple_of(tl.load(slices + 3 * of_slice + 2), UNIT)
    entry = tl.load(chunk).to(tl.pointer_type(tl.int64)) + 6 * tl.load(slices + 3 * of_slice)
    rank, gain, offset = tl.load(entry + 2), tl.load(entry + 4), tl.load(entry + 5)
    if rank + gain + offset == 0:
        return
    i = start + tl.arange(0, BLOCK_M)
    o = first + tl.arange(0, BLOCK_N)
    is_row, is_column = i < end, o < width
    h_row = h + i * h_stride + of_slice * h_width
    b = tl.multiple_of(tl.load(entry + 1).to(tl.pointer_type(y.dtype.element_ty)), 16)
    update = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    # The same twice: where the compiler knows that rows of B are aligned, it loads 16 bytes each.
    if rank % 8 == 0:
        update = add_product(
            *(update, h_row, b, is_row, o, is_column, rank // 8 * 8, split_stride),
            *(SPLITS, BLOCK_R, PRECISION),
        )
    else:
        update = add_product(
            *(update, h_row, b, is_row, o, is_column, rank, split_stride),
            *(SPLITS, BLOCK_R, PRECISION),
        )
    scale = tl.load(entry + 3).to(tl.int32).to(tl.float32, bitcast=True)
    column = tl.multiple_of(tl.load(slices + 3 * of_slice + 1), UNIT)
    y_tile = y + i[:, None] * y_stride + column + o[None, :]
    y_mask = is_row[:, None] & is_column[None, :]
    updated = tl.load(y_tile, y_mask, 0).to(tl.float32) + scale * update
    floats = tl.pointer_type(tl.float32)
    gains = tl.load(gain.to(floats) + o, is_column & (gain != 0), 1.0)
    offsets = tl.load(offset.to(floats) + o, is_column & (offset != 0), 0.0)
    updated = updated * gains[None, :] + offsets[None, :]
    tl.store(y_tile, updated.to(y.dtype.element_ty), y_mask)


@triton.jit
def add_product(
    update,  # [BLOCK_M, BLOCK_N]
    h_row,  # [BLOCK_M]: pointers
    b,  # [out, rank]
    is_row,
    o,
    is_column,
    rank,
    split_stride,
    SPLITS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return ``update`` plus the rows of ``h``, summed over splits in order, times ``b[o].T``."""
    for block in range(0, rank, BLOCK_R):
        r = block + tl.arange(0, BLOCK_R)
        h_mask = is_row[:, None] & (r[None, :] < rank)
        h_tile = tl.full((h_row.shape[0], BLOCK_R), 0.0, tl.float32)
        partial = h_row[:, None] + r[None, :]
        for _ in tl.static_range(SPLITS):
            h_tile += tl.load(partial, h_mask, 0)
            partial += split_stride
        b_mask = is_column[:, None] & (r[None, :] < rank)
        b_tile = tl.load(b + o[:, None].to(tl.int64) * rank + r[None, :], b_mask, 0)
        update = tl.dot(h_tile, tl.trans(b_tile.to(tl.float32)), update, input_precision=PRECISION)
    return update


@triton.jit
def slice_of_tile(slices, tile, SLICES: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return which slice the tile is of, as slices are cut into tiles of ``BLOCK_N`` columns one
    after the other, and the tile's first column in it."""
    of_slice, own_first, end = 0, 0, 0
    for j in tl.static_range(SLICES - 1):
        end += tl.cdiv(tl.load(slices + 3 * j + 2).to(tl.int32), BLOCK_N)
        is_beyond = tile >= end
        of_slice += is_beyond.to(tl.int32)
        own_first = tl.where(is_beyond, end, own_first)
    return of_slice, (tile - own_first) * BLOCK_N
