"""How a worker divides the memory that it finds."""

from dataclasses import replace
from pathlib import Path

import pytest

from loraplex.engine.errors import MemoryTooSmall
from loraplex.engine.memory import (
    MIB,
    PoolRequest,
    free_host_bytes,
    require_model_fits,
    size_pools,
)

REQUEST = PoolRequest(
    free_bytes=1000 * MIB,
    kv_share=0.25,
    bytes_per_block=MIB,
    block_size=16,
    max_model_len=1024,
    max_running=64,
    kv_memory_bytes=None,
    adapter_memory_bytes=None,
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 8,000 KiB available and no control group."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:  8000 kB\n")
    return tmp_path


def limit_group(machine: Path, limit: str) -> None:
    group = machine / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(limit + "\n")
    (group / "memory.current").write_text("3000000\n")
    (group / "memory.stat").write_text("anon 1000000\ninactive_file 500000\n")


def test_without_a_control_group_the_machines_available_memory_counts(machine: Path) -> None:
    assert free_host_bytes(machine) == 8000 * 1024


def test_a_control_groups_limit_counts_less_what_it_uses_and_cannot_give_up(machine: Path) -> None:
    limit_group(machine, "4000000")
    assert free_host_bytes(machine) == 1_500_000


def test_a_control_group_without_a_limit_limits_nothing(machine: Path) -> None:
    limit_group(machine, "max")
    assert free_host_bytes(machine) == 8000 * 1024


def test_the_kv_cache_takes_its_share_of_free_memory() -> None:
    assert size_pools(REQUEST).kv_bytes == 250 * MIB
    assert size_pools(replace(REQUEST, kv_share=0.6)).num_blocks == 600


def test_the_kv_cache_is_never_larger_than_all_running_requests_need() -> None:
    sizes = size_pools(replace(REQUEST, max_running=2))
    assert sizes.num_blocks == 2 * 1024 // 16


def test_given_sizes_are_taken_as_they_are() -> None:
    given = replace(REQUEST, kv_memory_bytes=100 * MIB, adapter_memory_bytes=7)
    sizes = size_pools(given)
    assert (sizes.kv_bytes, sizes.adapter_bytes) == (100 * MIB, 7)


def test_the_host_holds_a_quarter_of_the_kv_cache_and_a_twentieth_of_its_own_memory_at_most() -> (
    None
):
    roomy = replace(REQUEST, swap_memory_bytes=None, free_host_bytes=10_000 * MIB)
    assert size_pools(roomy).num_host_blocks == 62
    assert size_pools(replace(roomy, free_host_bytes=1000 * MIB)).num_host_blocks == 50
    assert size_pools(replace(roomy, swap_memory_bytes=7 * MIB)).num_host_blocks == 7
    assert size_pools(replace(roomy, swap_memory_bytes=0)).num_host_blocks == 0


def test_on_a_host_all_pools_together_take_no_more_than_is_free() -> None:
    full = replace(
        REQUEST,
        kv_memory_bytes=600 * MIB,
        adapter_memory_bytes=390 * MIB,
        free_host_bytes=1000 * MIB,
        swap_memory_bytes=None,
    )
    assert size_pools(full).num_host_blocks == 50, "a GPU has memory of its own"
    on_host = replace(full, is_on_host=True)
    assert size_pools(on_host).num_host_blocks == 10
    assert size_pools(replace(on_host, swap_memory_bytes=10 * MIB)).num_host_blocks == 10
    with pytest.raises(MemoryTooSmall, match="10 MiB are free beside 990 MiB"):
        size_pools(replace(on_host, swap_memory_bytes=11 * MIB))


@pytest.mark.parametrize(
    ("request_", "remedy"),
    [
        (replace(REQUEST, swap_memory_bytes=2 * MIB), "lower LORAPLEX_SWAP_MEMORY_BYTES, 0 needs"),
        (replace(REQUEST, kv_memory_bytes=63 * MIB), "LORAPLEX_MAX_MODEL_LEN to at most 1008"),
        (replace(REQUEST, adapter_memory_bytes=800 * MIB), "lower LORAPLEX_KV_MEMORY_BYTES"),
        (replace(REQUEST, free_bytes=10 * MIB), "LORAPLEX_KV_MEMORY_BYTES to at least 67108864"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(request_: PoolRequest, remedy: str) -> None:
    with pytest.raises(MemoryTooSmall, match=remedy):
        size_pools(request_)


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded() -> None:
    require_model_fits(10 * MIB, 10 * MIB)
    with pytest.raises(MemoryTooSmall, match="LORAPLEX_DTYPE=bfloat16"):
        require_model_fits(11 * MIB, 10 * MIB)


def test_the_border_of_blocks_and_adapters_moves_on_a_host_where_nobody_has_fixed_a_side() -> None:
    on_host = replace(REQUEST, is_on_host=True, free_host_bytes=1000 * MIB)
    sizes = size_pools(on_host)
    assert (sizes.lent_block_bytes, sizes.min_blocks) == (MIB, 125)
    assert size_pools(replace(on_host, max_model_len=3200)).min_blocks == 200
    for fixed in (
        REQUEST,
        replace(on_host, kv_memory_bytes=200 * MIB),
        replace(on_host, adapter_memory_bytes=MIB),
    ):
        assert size_pools(fixed).lent_block_bytes == 0


def test_adapters_on_the_host_take_a_tenth_of_it_or_what_is_asked_or_what_is_left() -> None:
    roomy = replace(REQUEST, host_adapter_bytes=None, free_host_bytes=10_000 * MIB)
    assert size_pools(roomy).host_adapter_bytes == 1000 * MIB
    assert size_pools(replace(roomy, host_adapter_bytes=7)).host_adapter_bytes == 7
    full = replace(roomy, is_on_host=True, free_host_bytes=460 * MIB)
    assert size_pools(full).host_adapter_bytes == 10 * MIB
    with pytest.raises(MemoryTooSmall, match="lower LORAPLEX_HOST_ADAPTER_BYTES, 0 needs"):
        size_pools(replace(full, host_adapter_bytes=11 * MIB))
