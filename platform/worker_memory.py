"""How a worker divides the memory that it finds."""

import logging

import torch

from loraplex.engine import memory
from loraplex.engine.model import LoadedModel
from loraplex.engine.runner import kv_bytes_per_block
from loraplex.platform.settings import Settings

_log = logging.getLogger(__name__)


def pool_sizes(settings: Settings, model: LoadedModel) -> memory.PoolSizes:
    """What the KV cache and adapters get of the machine's memory. Raises MemoryTooSmall."""
    on_gpu = model.config.device == "cuda"
    host_bytes = memory.free_host_bytes()
    free_bytes = torch.cuda.mem_get_info()[0] if on_gpu else host_bytes
    sizes = memory.size_pools(
        memory.PoolRequest(
            free_bytes=free_bytes,
            kv_share=memory.DEVICE_KV_SHARE if on_gpu else memory.HOST_KV_SHARE,
            bytes_per_block=kv_bytes_per_block(model, settings.block_size),
            block_size=settings.block_size,
            max_model_len=model.max_model_len,
            max_running=settings.max_running,
            kv_memory_bytes=settings.kv_memory_bytes,
            adapter_memory_bytes=settings.adapter_memory_bytes,
            free_host_bytes=host_bytes,
            swap_memory_bytes=settings.swap_memory_bytes,
            host_adapter_bytes=settings.host_adapter_bytes,
            is_on_host=not on_gpu,
        )
    )
    _log.info(
        "memory: %d MiB free, KV cache %d MiB (%d blocks of %d tokens), adapters %d MiB; on the "
        "host %d blocks for preempted requests, adapters %d MiB; at most %d tokens per request",
        free_bytes // memory.MIB,
        sizes.kv_bytes // memory.MIB,
        sizes.num_blocks,
        settings.block_size,
        sizes.adapter_bytes // memory.MIB,
        sizes.num_host_blocks,
        sizes.host_adapter_bytes // memory.MIB,
        sizes.max_model_len,
    )
    return sizes
