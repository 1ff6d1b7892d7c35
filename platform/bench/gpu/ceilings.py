"""What the card can do at best, and what it is."""

import platform
from collections.abc import Iterator
from functools import partial

import torch

from loraplex.platform.bench.floors import Work
from loraplex.platform.bench.gpu.clock import device_ms, median_ms
from loraplex.platform.bench.gpu.records import Fact, Record
from loraplex.platform.bench.gpu.stage import Setup

COPY = "copy_gb_per_s"
PINNED = "pinned_to_card_gb_per_s"


def gemm(dtype: torch.dtype) -> str:
    """Name of the fact that holds a dtype's GEMM rate."""
    return f"gemm_{str(dtype).removeprefix('torch.')}_tflop_per_s"


def ceilings(setup: Setup) -> Iterator[Record]:
    """Tell the card, its copy bandwidth, GEMM rates and links to the host."""
    yield from _machine(setup)
    device = setup.device
    source = torch.ones(1 << (20 if setup.small else 28), device=device)
    target = torch.empty_like(source)
    copy_ms = median_ms(partial(target.copy_, source), device)
    yield Fact(COPY, 2 * source.nbytes / copy_ms / 1e6)  # read and written
    side = 256 if setup.small else 8192
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        square = torch.randn(side, side, device=device).to(dtype)
        gemm_ms = median_ms(partial(torch.mm, square, square), device, 5)
        yield Fact(gemm(dtype), 2 * side**3 / gemm_ms / 1e9)
    host = torch.ones(source.shape, pin_memory=setup.on_gpu)
    to_card_ms = median_ms(partial(target.copy_, host, non_blocking=True), device, 5)
    yield Fact(PINNED, host.nbytes / to_card_ms / 1e6)
    to_host_ms = median_ms(partial(host.copy_, source, non_blocking=True), device, 5)
    yield Fact("pinned_to_host_gb_per_s", host.nbytes / to_host_ms / 1e6)
    pageable = torch.ones(source.shape)
    pageable_ms = median_ms(partial(target.copy_, pageable), device, 5)
    yield Fact("pageable_to_card_gb_per_s", pageable.nbytes / pageable_ms / 1e6)
    few = torch.ones(16, device=device)
    yield Fact(
        "replayed_launch_us", device_ms(lambda: [few.add_(1) for _ in range(100)], device) * 10
    )


def _machine(setup: Setup) -> Iterator[Record]:
    yield Fact("card", torch.cuda.get_device_name() if setup.on_gpu else "none: a trial on a CPU")
    if setup.on_gpu:
        major, minor = torch.cuda.get_device_capability()
        yield Fact("compute_capability", f"{major}.{minor}")
        yield Fact("card_memory_gib", torch.cuda.get_device_properties(0).total_memory / 2**30)
        yield Fact("cuda", str(torch.version.cuda))
    try:
        import triton  # noqa: PLC0415  said, if it is missing, and no reason to end

        yield Fact("triton", triton.__version__)
    except ImportError as error:
        yield Fact("triton", f"none: {error}")
    yield Fact("torch", torch.__version__)
    yield Fact("python", platform.python_version())


def floor_ms(setup: Setup, num_bytes: int, flops: int, dtype: torch.dtype) -> float | None:
    """Milliseconds that bytes and arithmetic take at least; None if that was not measured."""
    copy, rate = setup.facts.get(COPY), setup.facts.get(gemm(dtype))
    if not copy or not rate:
        return None
    return Work(num_bytes, flops).floor_ms(copy * 1e9, rate * 1e12)
