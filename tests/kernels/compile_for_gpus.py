"""Compiles the kernels, with the parameters of real launches, to machine code of two GPUs.

That needs no GPU: Triton brings its own assembler.  A process of its own, since a kernel is either
interpreted or compiled.
"""

import os
import tempfile
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from loraplex.kernels import attention_triton, lora_triton
from loraplex.kernels.attention import KvLayout, Scoring, Span, Spans, allocate_kv_cache
from loraplex.kernels.attention_paged import TritonAttention
from loraplex.kernels.lora import LoraSegment
from loraplex.kernels.paged_step import PagedLayout
from loraplex.kernels.segments import Slices, TableRows, lora_table, step_segments

ARCHITECTURES = (80, 90)
SHARED_BYTES = 99 * 1024  # what a block may take on the smallest GPUs with bfloat16
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int64: "i64", torch.int32: "i32"}
SCALARS = {int: "i32", float: "fp32"}
CPU = torch.device("cpu")
UPDATES = [  # widths of modules that share an input, its width, rows of a segment, rank
    ((4096, 1024, 1024), 4096, 1, 16),  # q, k, v of 7B, decoding
    ((11008, 11008), 4096, 133, 64),  # gate, up, a prompt
    ((4096,), 11008, 1, 512),
    ((2048, 512, 512), 2048, 133, 16),  # of 1B
]
LAYERS = [  # heads, KV heads, key dim, value dim, scoring
    (32, 32, 128, 128, Scoring(0.1)),  # of 7B
    (28, 4, 128, 128, Scoring(0.1, 4096)),
    (32, 8, 64, 64, Scoring(0.1)),  # of 1B
    (8, 4, 256, 256, Scoring(0.1, 4096, 50.0)),
    (8, 1, 512, 512, Scoring(0.1)),  # the widest
]


@dataclass
class Recorder:
    """Takes a kernel's place and notes what it is launched with."""

    kernel: Any
    launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **kwargs: self.launches.append((args, kwargs))


def compiled(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], architecture: int) -> Any:
    """Compile as a launch with these arguments does."""
    names = kernel.arg_names
    values = dict(zip(names, args, strict=False))
    constants = {name: value for name, value in kwargs.items() if name in names}
    options = {name: value for name, value in kwargs.items() if name not in names}
    signature = {
        name: "constexpr"
        if name in constants
        else f"*{TYPES[values[name].dtype]}"
        if isinstance(values[name], torch.Tensor)
        else SCALARS[type(values[name])]
        for name in names
    }
    general = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    aligned = {
        (position,): [["tt.divisibility", 16]]
        for position, name in enumerate(names)
        if isinstance(value := values.get(name), torch.Tensor)
        or (isinstance(value, int) and name not in general and value % 16 == 0)
    }
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def launch_lora(widths: tuple[int, ...], in_width: int, rows: int, rank: int) -> None:
    """Update one segment."""
    dtype, shapes = torch.bfloat16, [(width, in_width) for width in widths]
    a = torch.zeros(rank, in_width, dtype=dtype)
    pairs = [LoraSegment(0, rows, a, torch.zeros(w, rank, dtype=dtype), 1.0) for w in widths]
    table = lora_table(pairs, shapes, dtype=dtype, device=CPU)
    slices = Slices.of(range(len(widths)), widths, in_width)
    segments = step_segments([TableRows(0, rows, table)]).at(slices)
    assert segments is not None
    x, y = (torch.zeros(rows, width, dtype=dtype) for width in (in_width, sum(widths)))
    lora_triton.add_lora_triton(y, x, segments)


def launch_attention(
    heads: int, kv_heads: int, key_dim: int, value_dim: int, scoring: Scoring
) -> None:
    """Attend a long decode and a prompt."""
    dtype, layout = torch.bfloat16, KvLayout(200, 16)
    spans = [Span(1000, 1, range(63)), Span(40, 100, range(63, 72))]
    q, k, v = (
        torch.zeros(101, *shape, dtype=dtype)
        for shape in ((heads, key_dim), (kv_heads, key_dim), (kv_heads, value_dim))
    )
    cache = allocate_kv_cache(layout, kv_heads, (key_dim, value_dim), dtype=dtype, device=CPU)
    attention = TritonAttention(PagedLayout(layout.block_size, CPU))
    attention.attend(q, k, v, cache, attention.plan(Spans.of(spans)), scoring)


def record(module: Any, *names: str) -> list[Recorder]:
    """Put recorders in place of a module's kernels."""
    recorders = [Recorder(getattr(module, name)) for name in names]
    for name, recorder in zip(names, recorders, strict=True):
        setattr(module, name, recorder)
    return recorders


def main() -> None:
    recorders = [
        *record(lora_triton, "shrink", "expand"),
        *record(attention_triton, "store_kv", "attend", "combine"),
    ]
    for update in UPDATES:
        launch_lora(*update)
    for layer in LAYERS:
        launch_attention(*layer)
    for recorder in recorders:
        kernel = recorder.kernel
        for args, kwargs in recorder.launches:
            for architecture in ARCHITECTURES:
                result = compiled(kernel, args, kwargs, architecture)
                assert result.asm["cubin"]
                shared = result.metadata.shared
                assert shared <= SHARED_BYTES, (kernel.__name__, architecture, shared, kwargs)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        main()
