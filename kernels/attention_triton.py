"""Attention over a paged cache on a GPU: one kernel for decodes and prompts, by block tables."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from loraplex.kernels.attention import KvCache, Scoring
from loraplex.kernels.paged_step import TILE_ROWS, PagedStep

MAX_DIM = 512
"""Of a key or a value."""
MAX_GROUP = 128
"""Heads that share a KV head."""
_ALL_KEYS = 2**30  # a window that no sequence fills
_MAX_SPLITS = tl.constexpr(16)
_SPLIT_KEYS = tl.constexpr(256)
_LOG2_E = tl.constexpr(1.4426950408889634)


def store_kv_triton(cache: KvCache, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write keys and values of a step into their slots, in place.

    Args:
        cache: of the layer, contiguous.
        k: ``[rows, kv_heads, key_dim]``, the dtype of the cache.
        v: ``[rows, kv_heads, value_dim]``, the same.
        slots: ``[rows]`` int32, block times block size plus place; below 0 writes nothing.

    Raises:
        ValueError: the cache is not contiguous.
    """
    if not (cache.keys.is_contiguous() and cache.values.is_contiguous()):
        raise ValueError("keys and values of the cache must be contiguous")
    rows, kv_heads, key_dim = k.shape
    value_dim = v.shape[-1]
    k, v = _adjacent(k), _adjacent(v)
    store_kv[rows, kv_heads](
        *(cache.keys, cache.values, k, v, slots, *k.stride()[:2], *v.stride()[:2]),
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        BLOCK_D=triton.next_power_of_2(max(key_dim, value_dim)),
        num_warps=1,
    )


def attend_triton(
    out: Tensor, q: Tensor, cache: KvCache, step: PagedStep, scoring: Scoring
) -> None:
    """Attend the rows of a step to their own sequences, which the cache holds to their end.

    A program takes a tile, or some rows of it, and all heads of one KV head, so that each key is
    read once for them.  Softmax runs along the keys, with sums in float32.  Few decodes make few
    programs, so the keys of a long sequence are shared between up to 16, whose sums another launch
    adds in order.  How keys are shared follows from a row's own position and window, never from
    the other rows: nothing is added atomically, and equal rows give equal bits.  A row of a prompt
    has the same bits whatever rows come with it; computed as a decode it may have others.

    Nothing here waits for the device, and launches are sized by the shapes of ``step`` and its
    bounds, so that its content may change between replays of a graph.

    Args:
        out: ``[rows, heads, value_dim]``, contiguous; rows of no tile are left alone.
        q: ``[rows, heads, key_dim]``, dtype of ``out``.
        cache: of the layer, contiguous, dtype of ``out``.
        step: of all rows.
        scoring: of the layer.

    Raises:
        ValueError: the layer's form is beyond the kernel's.
    """
    key_dim, value_dim, group = q.shape[2], out.shape[2], q.shape[1] // cache.keys.shape[2]
    if max(key_dim, value_dim) > MAX_DIM or group > MAX_GROUP:
        raise ValueError(
            f"keys of {key_dim}, values of {value_dim} and {group} heads for a KV head are more"
            f" than {MAX_DIM}, {MAX_DIM} and {MAX_GROUP}"
        )
    q, tables = _adjacent(q), step.block_tables
    _attend(out, q, cache, step.decodes, tables, scoring, max_keys=step.most.keys_of_decode)
    _attend(out, q, cache, step.chunks, tables, scoring, max_keys=None)


def _attend(
    out: Tensor,
    q: Tensor,
    cache: KvCache,
    tiles: Tensor,
    block_tables: Tensor,
    scoring: Scoring,
    *,
    max_keys: int | None,
) -> None:
    """Launch for decodes of up to ``max_keys`` keys, or, if that is None, for rows of prompts."""
    if not len(tiles):
        return
    is_decode = max_keys is not None
    heads, key_dim, value_dim, kv_heads = *q.shape[1:], out.shape[2], cache.keys.shape[2]
    group, itemsize = heads // kv_heads, q.element_size()
    block_m, block_n = _block_sizes(group, key_dim, value_dim, itemsize, is_decode=is_decode)
    window = scoring.window or _ALL_KEYS
    if max_keys is None:
        parts = triton.cdiv(TILE_ROWS, block_m // group)
    else:  # the first key of a window need not be the first of a block
        splits_of_longest = triton.cdiv(min(max_keys, window + block_n - 1), _SPLIT_KEYS.value)
        parts = min(_MAX_SPLITS.value, splits_of_longest)
    of_splits = (len(tiles), heads, parts) if is_decode else (0, 0, 0)
    splits = out.new_empty((*of_splits, value_dim + 2), dtype=torch.float32)
    attend[len(tiles), kv_heads, parts](
        *(out, splits, q, cache.keys, cache.values, tiles, block_tables),
        *(scoring.scaling, window, q.stride(0), q.stride(1), block_tables.stride(0)),
        GROUP=group,
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        BLOCK_SIZE=cache.keys.shape[1],
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        SOFTCAP=scoring.softcap or 0.0,
        IS_DECODE=is_decode,
        # Triton's interpreter multiplies bfloat16 wrong.
        UPCAST=knobs.runtime.interpret and q.dtype is torch.bfloat16,
        num_warps=8 if block_m > 64 else 4,
        num_stages=3,  # block tables, one block of keys ahead of keys and values
    )
    if is_decode:
        combine[len(tiles), heads](
            *(out, splits, tiles, window, parts),
            VALUE_DIM=value_dim,
            BLOCK_N=block_n,
            num_warps=1,
        )


def _block_sizes(
    group: int, key_dim: int, value_dim: int, itemsize: int, *, is_decode: bool
) -> tuple[int, int]:
    """Return how many pairs of row and head, and how many keys, a program takes at a time.

    Two stages of keys and values fit into the shared memory of small GPUs.  The number of keys
    is the same for decodes and prompts.
    """
    widths = triton.next_power_of_2(key_dim) + triton.next_power_of_2(value_dim)
    bytes_per_key = max(32, widths) * itemsize
    least = 16 if is_decode else 64 if bytes_per_key <= 1024 else 32
    keys = 64 if bytes_per_key <= 512 else 32 if bytes_per_key <= 1024 else 16
    return triton.next_power_of_2(max(group, least)), keys


def _adjacent(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@triton.jit
def store_kv(
    keys,  # [blocks, block_size, kv_heads, KEY_DIM]
    values,  # [blocks, block_size, kv_heads, VALUE_DIM]
    k,  # [rows, kv_heads, KEY_DIM]
    v,  # [rows, kv_heads, VALUE_DIM]
    slots,  # int32 [rows]
    k_row_stride,
    k_head_stride,
    v_row_stride,
    v_head_stride,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Copy one row's key and value of one head."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 0:
        return
    d = tl.arange(0, BLOCK_D)
    place = slot * tl.num_programs(1) + head
    key = tl.load(k + row * k_row_stride + head * k_head_stride + d, d < KEY_DIM)
    tl.store(keys + place * KEY_DIM + d, key, d < KEY_DIM)
    value = tl.load(v + row * v_row_stride + head * v_head_stride + d, d < VALUE_DIM)
    tl.store(values + place * VALUE_DIM + d, value, d < VALUE_DIM)


@triton.jit
def first_key(position, window, BLOCK_N: tl.constexpr):
    """Return where a row begins to read: blocks of keys begin at multiples of ``BLOCK_N``, so that
    a row's sums are cut alike whatever rows share its tile."""
    return tl.maximum(position + 1 - window, 0) // BLOCK_N * BLOCK_N


@triton.jit
def split_width(num_keys, BLOCK_N: tl.constexpr):
    """Return how many keys one program takes of a decode that reads ``num_keys``."""
    return tl.maximum(_SPLIT_KEYS, tl.cdiv(num_keys, _MAX_SPLITS * BLOCK_N) * BLOCK_N)


@triton.jit(do_not_specialize=["window", "table_stride"])
def attend(
    out,  # [rows, heads, VALUE_DIM]
    splits,  # float32 [tiles, heads, splits, VALUE_DIM + 2], if IS_DECODE
    q,  # [rows, heads, KEY_DIM]
    keys,  # [blocks, BLOCK_SIZE, kv_heads, KEY_DIM]
    values,  # [blocks, BLOCK_SIZE, kv_heads, VALUE_DIM]
    tiles,  # int32 [tiles, 4]
    block_tables,  # int32 [sequences, blocks]
    scaling,
    window,
    q_row_stride,
    q_head_stride,
    table_stride,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SOFTCAP: tl.constexpr,
    IS_DECODE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attend pairs of row and head: of one tile, the heads of one KV head, and one split of the
    keys of a decode or one part of a prompt's rows."""
    tile = tiles + 4 * tl.program_id(0)
    rows = tl.load(tile + 2)
    rows_at_once: tl.constexpr = 1 if IS_DECODE else BLOCK_M // GROUP
    skipped = 0 if IS_DECODE else tl.program_id(2) * rows_at_once
    if skipped >= rows:
        return
    m, ahead = tl.arange(0, BLOCK_M), skipped + tl.arange(0, BLOCK_M) // GROUP
    is_query = (m < rows_at_once * GROUP) & (ahead < rows)
    row = (tl.load(tile + 1) + ahead).to(tl.int64)
    head = tl.program_id(1) * GROUP + m % GROUP
    position = tl.load(tile + 3)
    begin = first_key(position + skipped, window, BLOCK_N)
    end = position + tl.minimum(rows, skipped + rows_at_once)
    if IS_DECODE:
        width = split_width(end - begin, BLOCK_N)
        begin += tl.program_id(2) * width
        end = tl.minimum(end, begin + width)
        if begin >= end:
            return
    queries = q + row * q_row_stride + head * q_head_stride
    q_tile = load_rows(queries, is_query, KEY_DIM, UPCAST)
    table = block_tables + tl.load(tile).to(tl.int64) * table_stride
    highest, total, sum_of_values = attend_keys(
        *(q_tile, position + ahead, begin, end, keys, values, table, scaling, window),
        *(KEY_DIM, VALUE_DIM, BLOCK_SIZE, BLOCK_N, SOFTCAP, UPCAST),
    )
    if IS_DECODE:
        of_tile = tl.program_id(0).to(tl.int64) * tl.num_programs(1) * GROUP + head
        target = splits + (of_tile * tl.num_programs(2) + tl.program_id(2)) * (VALUE_DIM + 2)
        tl.store(target + VALUE_DIM, highest, is_query)
        tl.store(target + VALUE_DIM + 1, total, is_query)
        store_rows(target, sum_of_values, is_query, VALUE_DIM)
    else:
        target = out + (row * tl.num_programs(1) * GROUP + head) * VALUE_DIM
        store_rows(target, sum_of_values / total[:, None], is_query, VALUE_DIM)


@triton.jit
def attend_keys(
    q_tile,  # [BLOCK_M, power of 2 from KEY_DIM]
    position,  # [BLOCK_M]
    begin,
    end,
    keys,
    values,
    table,
    scaling,
    window,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Return each row's highest score, sum of weights and weighted sum of values, of the positions
    ``[begin, end)`` that it sees.  Scores are logarithms to the base 2."""
    highest = tl.full((q_tile.shape[0],), float("-inf"), tl.float32)
    total = tl.zeros_like(highest)
    sum_of_values = tl.zeros((q_tile.shape[0], padded(VALUE_DIM)), tl.float32)
    for first in range(begin, end, BLOCK_N):
        p = first + tl.arange(0, BLOCK_N)
        # What lies beyond a sequence's end is another's, and need not be finite.
        is_own = p < end
        block = tl.load(table + p // BLOCK_SIZE, is_own, 0).to(tl.int64)
        place = (block * BLOCK_SIZE + p % BLOCK_SIZE) * tl.num_programs(1) + tl.program_id(1)
        k_tile = load_rows(keys + place * KEY_DIM, is_own, KEY_DIM, UPCAST)
        v_tile = load_rows(values + place * VALUE_DIM, is_own, VALUE_DIM, UPCAST)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scaling
        if SOFTCAP != 0:  # tanh(s) = 1 - 2 / (exp(2 s) + 1)
            scores = SOFTCAP * (1 - 2 / (tl.exp(scores * (2 / SOFTCAP)) + 1))
        is_seen = is_own[None, :] & (p[None, :] <= position[:, None])
        is_seen &= p[None, :] > position[:, None] - window
        scores = tl.where(is_seen, scores * _LOG2_E, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        # A row that has seen no key yet has no highest score to subtract.
        shift = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        weights, decay = tl.exp2(scores - shift[:, None]), tl.exp2(highest - shift)
        total = total * decay + tl.sum(weights, 1)
        sum_of_values = tl.dot(
            weights.to(v_tile.dtype),
            v_tile,
            sum_of_values * decay[:, None],
            input_precision="ieee",
        )
        highest = new_highest
    return highest, total, sum_of_values


@triton.constexpr_function
def padded(dim):
    """Return the columns of a tile that holds ``dim``; tensor cores multiply 16 or more."""
    return max(16, triton.next_power_of_2(dim))


@triton.jit
def load_rows(rows, mask, DIM: tl.constexpr, UPCAST: tl.constexpr):
    """Return ``[n, padded(DIM)]`` of the rows that begin at ``n`` pointers, 0 where masked."""
    d = tl.arange(0, padded(DIM))
    tile = tl.load(rows[:, None] + d[None, :], mask[:, None] & (d[None, :] < DIM), 0)
    return tile.to(tl.float32) if UPCAST else tile


@triton.jit
def store_rows(rows, tile, mask, DIM: tl.constexpr):
    """Write ``tile [n, padded(DIM)]`` to the rows that begin at ``n`` pointers."""
    d = tl.arange(0, padded(DIM))
    pointers = rows[:, None] + d[None, :]
    tl.store(pointers, tile.to(rows.dtype.element_ty), mask[:, None] & (d[None, :] < DIM))


@triton.jit(do_not_specialize=["window", "max_splits"])
def combine(
    out,  # [rows, heads, VALUE_DIM]
    splits,  # float32 [tiles, heads, max_splits, VALUE_DIM + 2]
    tiles,  # int32 [tiles, 4]
    window,
    max_splits,
    VALUE_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add the splits of one decode and head in order."""
    tile = tiles + 4 * tl.program_id(0)
    if tl.load(tile + 2) == 0:
        return
    o = tl.arange(0, padded(VALUE_DIM))
    position = tl.load(tile + 3)
    num_keys = position + 1 - first_key(position, window, BLOCK_N)
    head = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    split = splits + head * max_splits * (VALUE_DIM + 2)
    highest, total = tl.load(split + VALUE_DIM), tl.load(split + VALUE_DIM + 1)
    sum_of_values = tl.load(split + o, o < VALUE_DIM, 0)
    for _ in range(1, tl.cdiv(num_keys, split_width(num_keys, BLOCK_N))):
        split += VALUE_DIM + 2
        own_highest = tl.load(split + VALUE_DIM)
        new_highest = tl.maximum(highest, own_highest)
        decay, own_decay = tl.exp2(highest - new_highest), tl.exp2(own_highest - new_highest)
        total = total * decay + tl.load(split + VALUE_DIM + 1) * own_decay
        sum_of_values = sum_of_values * decay + tl.load(split + o, o < VALUE_DIM, 0) * own_decay
        highest = new_highest
    row = tl.load(tile + 1).to(tl.int64)
    target = out + (row * tl.num_programs(1) + tl.program_id(1)) * VALUE_DIM + o
    tl.store(target, (sum_of_values / total).to(out.dtype.element_ty), o < VALUE_DIM)
