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

from loraplex.kernels import lora_triton
from loraplex.kernels.lora import LoraSegment
from loraplex.kernels.segments import TableRows, lora_table, step_segments

ARCHITECTURES = (80, 90)
SHARED_BYTES = 99 * 1024  # what a block may take on the smallest GPUs with bfloat16
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int64: "i64"}
CASES = [(torch.bfloat16, 1, 64), (torch.bfloat16, 133, 64)]  # dtype, rows of a segment, rank


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
        else "i32"
        for name in names
    }
    aligned = {
        (position,): [["tt.divisibility", 16]]
        for position, name in enumerate(names)
        if isinstance(values.get(name), torch.Tensor)
        or (name != "module" and values.get(name, 1) % 16 == 0)
    }
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def launch(dtype: torch.dtype, rows: int, rank: int) -> None:
    """Update one segment at the width of a 7B model."""
    device, width = torch.device("cpu"), 4096
    a, b = torch.zeros(rank, width, dtype=dtype), torch.zeros(width, rank, dtype=dtype)
    pair = LoraSegment(0, rows, a, b, 1.0)
    table = lora_table([pair], [(width, width)], dtype=dtype, device=device)
    segments = step_segments([TableRows(0, rows, table)]).at(0)
    assert segments is not None
    x = torch.zeros(rows, width, dtype=dtype)
    lora_triton.add_lora_triton(x.clone(), x, segments)


def main() -> None:
    recorders = [Recorder(lora_triton.shrink), Recorder(lora_triton.expand)]
    lora_triton.shrink, lora_triton.expand = recorders
    for case in CASES:
        launch(*case)
    for recorder in recorders:
        for args, kwargs in recorder.launches:
            for architecture in ARCHITECTURES:
                kernel = recorder.kernel
                result = compiled(kernel, args, kwargs, architecture)
                assert result.asm["cubin"]
                assert result.metadata.shared <= SHARED_BYTES, (kernel.__name__, kwargs)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        main()
