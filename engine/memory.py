"""Sizes the worker's pools from the memory that is free at its start."""

from dataclasses import dataclass
from pathlib import Path

from loraplex.engine.errors import MemoryTooSmall

MIB = 1024 * 1024

DEVICE_KV_SHARE = 0.6
"""Of a GPU's free memory; what KV cache and adapters leave is for activations."""
HOST_KV_SHARE = 0.25
"""Of a host's free memory: the gateway, its database and others live there too."""
ADAPTER_SHARE = 0.2
HOST_ADAPTER_SHARE = 0.1
"""Of a host's free memory, for adapters that the device may want again."""
MIN_KV_SHARE = 0.5
"""Of the KV blocks, those that are never lent to adapters."""
SWAP_SHARE = 0.25
"""Of the KV cache, for what preempted requests have computed; and at most"""
SWAP_HOST_SHARE = 0.05
"""of the host's free memory."""


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Memory given to each pool."""

    num_blocks: int
    kv_bytes: int
    adapter_bytes: int
    max_model_len: int
    num_host_blocks: int = 0
    """KV blocks of the host's memory, for preempted requests."""
    host_adapter_bytes: int = 0
    """Of the host's memory, for adapters that the device may want again."""
    lent_block_bytes: int = 0
    """Bytes of a KV block, where free ones may be lent to adapters; 0: the border is fixed."""
    min_blocks: int = 0
    """KV blocks that are not lent."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """What is known when the pools are sized; None lets `size_pools` choose."""

    free_bytes: int
    kv_share: float
    """Of `free_bytes`, where `kv_memory_bytes` does not say."""
    bytes_per_block: int
    block_size: int
    max_model_len: int
    max_running: int
    kv_memory_bytes: int | None
    adapter_memory_bytes: int | None
    free_host_bytes: int = 0
    swap_memory_bytes: int | None = 0
    host_adapter_bytes: int | None = 0
    is_on_host: bool = False
    """True where `free_bytes` is the host's memory too, so that all pools share it."""


def free_host_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may still take: of the machine, and of its control group."""
    meminfo = (root / "proc/meminfo").read_text()
    available = next(line for line in meminfo.splitlines() if line.startswith("MemAvailable:"))
    free_bytes = int(available.split()[1]) * 1024
    group = root / "sys/fs/cgroup"
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:
        return free_bytes  # no control group limits this process
    if limit == "max":
        return free_bytes
    # Cached files count as used, but the kernel gives them up for whoever needs the memory.
    reclaimable = int(statistics.get("inactive_file", "0"))
    return min(free_bytes, int(limit) - used + reclaimable)


def require_model_fits(model_bytes: int, free_bytes: int) -> None:
    """Refuse to load what cannot fit. Raises MemoryTooSmall."""
    if model_bytes > free_bytes:
        raise MemoryTooSmall(
            f"the model needs {model_bytes // MIB} MiB and {free_bytes // MIB} MiB are free; "
            "free some memory, choose a smaller model, or set LORAPLEX_DTYPE=bfloat16"
        )


def size_pools(request: PoolRequest) -> PoolSizes:
    """Divide what is free after the model was loaded. Raises MemoryTooSmall."""
    most_bytes = _blocks(request.max_model_len, request.block_size) * request.max_running
    kv_bytes = request.kv_memory_bytes or min(
        int(request.free_bytes * request.kv_share), most_bytes * request.bytes_per_block
    )
    adapter_bytes = request.adapter_memory_bytes or int(request.free_bytes * ADAPTER_SHARE)
    num_blocks = kv_bytes // request.bytes_per_block
    if num_blocks * request.block_size < request.max_model_len:
        fits = num_blocks * request.block_size
        raise MemoryTooSmall(
            f"the KV cache of {kv_bytes // MIB} MiB holds {fits} tokens, fewer than one request of "
            f"max_model_len = {request.max_model_len}; set LORAPLEX_KV_MEMORY_BYTES to at least "
            f"{_blocks(request.max_model_len, request.block_size) * request.bytes_per_block}, or "
            f"LORAPLEX_MAX_MODEL_LEN to at most {fits}"
        )
    if kv_bytes + adapter_bytes > request.free_bytes:
        raise MemoryTooSmall(
            f"KV cache and adapters need {(kv_bytes + adapter_bytes) // MIB} MiB and "
            f"{request.free_bytes // MIB} MiB are free; lower LORAPLEX_KV_MEMORY_BYTES or "
            "LORAPLEX_ADAPTER_MEMORY_BYTES"
        )
    taken_bytes = kv_bytes + adapter_bytes if request.is_on_host else 0
    swap_bytes = _swap_bytes(request, kv_bytes, taken_bytes)
    return PoolSizes(
        num_blocks,
        kv_bytes,
        adapter_bytes,
        request.max_model_len,
        swap_bytes // request.bytes_per_block,
        _host_adapter_bytes(request, taken_bytes + swap_bytes),
        request.bytes_per_block if _may_lend(request) else 0,
        max(_blocks(request.max_model_len, request.block_size), int(num_blocks * MIN_KV_SHARE)),
    )


def _may_lend(request: PoolRequest) -> bool:
    """True if the border between KV blocks and adapters may move: where nobody has fixed a side of
    it, and the memory of single blocks can be given back to the system."""
    is_chosen = request.kv_memory_bytes is not None or request.adapter_memory_bytes is not None
    return request.is_on_host and not is_chosen


def _swap_bytes(request: PoolRequest, kv_bytes: int, taken_bytes: int) -> int:
    """`taken_bytes` of the host are other pools'. Raises MemoryTooSmall if what is left is less
    than was asked for."""
    asked, free_bytes = request.swap_memory_bytes, request.free_host_bytes - taken_bytes
    if asked is None:
        most_bytes = min(SWAP_SHARE * kv_bytes, SWAP_HOST_SHARE * request.free_host_bytes)
        return max(0, min(int(most_bytes), free_bytes))
    if asked > free_bytes:
        raise MemoryTooSmall(
            f"{asked // MIB} MiB of host memory are to hold what preempted requests computed, and "
            f"{free_bytes // MIB} MiB are free beside {taken_bytes // MIB} MiB of KV cache and "
            "adapters; lower LORAPLEX_SWAP_MEMORY_BYTES, 0 needs none"
        )
    return asked


def _host_adapter_bytes(request: PoolRequest, taken_bytes: int) -> int:
    """As `_swap_bytes`."""
    asked = request.host_adapter_bytes
    free_bytes = request.free_host_bytes - taken_bytes
    if asked is None:
        most_bytes = int(HOST_ADAPTER_SHARE * request.free_host_bytes)
        return max(0, min(most_bytes, free_bytes))
    if asked > free_bytes:
        raise MemoryTooSmall(
            f"{asked // MIB} MiB of host memory are to keep adapters, and {free_bytes // MIB} MiB "
            f"are free beside {taken_bytes // MIB} MiB of other pools; lower "
            "LORAPLEX_HOST_ADAPTER_BYTES, 0 needs none"
        )
    return asked


def _blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)
