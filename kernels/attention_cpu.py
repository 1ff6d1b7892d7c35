"""Attention on CPUs by compiled code, which reads keys and values in place; see
``cpu/attention.cpp``."""

import ctypes
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loraplex.kernels.attention import KvCache, Scoring, Spans
from loraplex.kernels.compiled import Library

_ALL = 2**62
"""A window of more positions than there are."""
_MOST_LAYERS = 1024
"""That are kept laid out."""
_READ_ROWS = 4
"""Rows with which attending to keys takes as long as reading them from memory."""
_STEP_NUMBERS = 7
"""Of the struct ``Step``, 64 bits each."""


@dataclass(frozen=True, slots=True)
class CpuMetadata:
    """A step, as the compiled code reads it."""

    num_rows: int
    num_blocks: int
    """That the pool must have, since block tables name them."""
    least_block_size: int
    """So that the blocks that each sequence's table names hold it."""
    num_scores: int
    """Pairs of a row and a key of its sequence; more where few rows wait for memory."""
    address: int
    """Of the struct ``Step``."""
    arrays: tuple[NDArray[Any], ...]
    """Held, since their addresses are in use."""


class _Layer(ctypes.Structure):
    """The struct ``Layer``."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("key_dim", ctypes.c_int64),
        ("value_dim", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("strides", ctypes.c_int64 * 6),
        ("scaling", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


_Form = tuple[torch.dtype, torch.Size, tuple[int, ...]]
"""Dtype, shape and strides of a tensor."""
_Pool = tuple[torch.dtype, torch.Size, tuple[int, ...], torch.device]
"""The same, and where it lies."""


@dataclass(frozen=True, slots=True)
class _LaidOut:
    """A layer, as the compiled code reads it."""

    struct: _Layer
    address: int
    num_blocks: int
    block_size: int
    is_whole: bool
    """True if the numbers of a vector are neighbours in q, k and v."""

    def check(self, step: CpuMetadata, num_rows: int) -> None:
        """Raise ValueError if the layer's rows or blocks are not those of the step."""
        if num_rows != step.num_rows:
            raise ValueError(
                f"q, k and v must have the step's {step.num_rows} rows, not {num_rows}"
            )
        if step.num_blocks > self.num_blocks:
            raise ValueError(
                f"block tables name {step.num_blocks} blocks, and the cache has {self.num_blocks}"
            )
        if step.least_block_size > self.block_size:
            raise ValueError(
                f"block tables name too few blocks of {self.block_size} tokens: blocks of "
                f"{step.least_block_size} would hold their sequences"
            )


class CpuAttention:
    """The compiled kernel; implements ``Attention``.  Serves any pool: where blocks lie is told by
    each call.  Any thread may call it, since each call has scratch memory of its own."""

    def __init__(self, library: Library) -> None:
        """Bind the functions of ``cpu/attention.cpp``.

        Raises:
            AttributeError: one is missing.
            OSError: it is of another layout.
        """
        types = (*[ctypes.c_void_p] * 6, ctypes.c_int64)
        self._attends = {
            torch.float32: library.bind("attend_float32", *types),
            torch.bfloat16: library.bind("attend_bfloat16", *types),
        }
        step_bytes = _STEP_NUMBERS * ctypes.sizeof(ctypes.c_int64)
        library.check_struct_bytes("attention_struct_bytes", (step_bytes, ctypes.sizeof(_Layer)))
        # Decodes come step after step in one form, prompts in many.
        self._laid_out = lru_cache(_MOST_LAYERS)(_lay_out)

    def supports(self, dtype: torch.dtype) -> bool:
        """True if queries, keys and values of this dtype can be computed."""
        return dtype in self._attends

    def plan(self, spans: Spans) -> CpuMetadata:
        """Lay out a step; see ``Attention``.

        Raises:
            ValueError: a span is empty, or its block table ends before it or names no block.
        """
        starts = np.ascontiguousarray(spans.starts, np.int64)
        lengths = np.ascontiguousarray(spans.lengths, np.int64)
        tables = np.ascontiguousarray(spans.block_tables, np.int32)
        if len(starts) and (lengths.min() < 1 or starts.min() < 0):
            raise ValueError("spans must begin at 0 or later and have 1 row or more")
        named = np.count_nonzero(tables >= 0, axis=1)  # shorter tables end in -1
        if len(starts) and named.min() < 1:
            raise ValueError("block tables must name blocks from 0 on")
        ends = lengths.cumsum()
        first_rows = ends - lengths
        num_rows = int(ends[-1]) if len(ends) else 0
        arrays = (starts, lengths, first_rows, tables)
        numbers = (len(starts), num_rows, tables.shape[1])
        step = np.array([*numbers, *(array.ctypes.data for array in arrays)], np.int64)
        keys = starts + lengths
        return CpuMetadata(
            num_rows=num_rows,
            num_blocks=int(tables.max()) + 1 if tables.size else 0,
            least_block_size=int((-(-keys // named)).max()) if len(keys) else 0,
            num_scores=int(np.maximum(lengths, _READ_ROWS) @ keys),
            address=step.ctypes.data,
            arrays=(step, *arrays),
        )

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: KvCache,
        metadata: CpuMetadata,
        scoring: Scoring,
    ) -> Tensor:
        """Attend the rows of one layer; see ``Attention``.

        Raises:
            ValueError: memory would be read or written wrong.
        """
        keys, values = cache
        layer = self._laid_out(
            (keys.data_ptr(), values.data_ptr()),
            (q.dtype, q.shape, q.stride()),
            (k.dtype, k.shape, k.stride()),
            (v.dtype, v.shape, v.stride()),
            (
                (keys.dtype, keys.shape, keys.stride(), keys.device),
                (values.dtype, values.shape, values.stride(), values.device),
            ),
            scoring,
        )
        if not layer.is_whole:
            q, k, v = (each.clone(memory_format=torch.contiguous_format) for each in (q, k, v))
            return self.attend(q, k, v, cache, metadata, scoring)
        rows, heads, key_dim = q.shape
        layer.check(metadata, rows)
        value_dim = v.shape[2]
        out = torch.empty(rows, heads, value_dim, dtype=q.dtype)
        products = metadata.num_scores * heads * (key_dim + value_dim)
        self._attends[q.dtype].for_work(products)(
            metadata.address,
            layer.address,
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


def _lay_out(
    addresses: tuple[int, int],
    q: _Form,
    k: _Form,
    v: _Form,
    cache: tuple[_Pool, _Pool],
    scoring: Scoring,
) -> _LaidOut:
    (key_dtype, keys, *_), (value_dtype, values, *_) = cache
    if not q[0] == k[0] == v[0] == key_dtype == value_dtype:
        raise ValueError("q, k, v and the cache must have one dtype")
    if any(
        device.type != "cpu" or strides != _contiguous(shape) for _, shape, strides, device in cache
    ):
        raise ValueError("the cache must be contiguous, on the CPU")
    rows, heads, key_dim = q[1]
    if not rows == k[1][0] == v[1][0]:
        raise ValueError("q, k and v must have as many rows")
    num_blocks, block_size, kv_heads, value_dim = values
    fits = (k[1][1:], v[1][1:], key_dim) == (keys[2:], values[2:], keys[3])
    if not fits or heads % kv_heads or keys[:3] != values[:3]:
        raise ValueError("q, k and v must have the heads and dims of the cache")
    strides = [stride for _, _, of in (q, k, v) for stride in of[:2]]
    struct = _Layer(
        *addresses,
        *(heads, kv_heads, key_dim, value_dim, block_size),
        scoring.window or _ALL,
        (ctypes.c_int64 * 6)(*strides),
        scoring.scaling,
        scoring.softcap or 0.0,
    )
    return _LaidOut(
        struct=struct,
        address=ctypes.addressof(struct),
        num_blocks=num_blocks,
        block_size=block_size,
        is_whole=all(of[2] == 1 for _, _, of in (q, k, v)),
    )


def _contiguous(shape: torch.Size) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
