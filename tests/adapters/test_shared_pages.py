"""What the host has of adapters can lie in files that other processes map."""

import errno
import mmap
import os
import resource
from pathlib import Path

import pytest
import torch
from tests.adapters.test_packed_pairs import PATHS, read_folder, write

from loraplex.adapters.placement import place
from loraplex.adapters.shared_pages import HostPages, SharedPages

SHARED = HostPages(shares=True)


def num_open() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, dict.fromkeys(PATHS, 2), ["F32"], str)
    return tmp_path


def test_another_process_reads_the_same_pairs_from_the_file(folder: Path) -> None:
    found = read_folder(folder, pages=SHARED)
    plain = read_folder(folder)
    assert found.shared_fd is not None
    assert torch.equal(found.pairs.data, plain.pairs.data)
    read_end, write_end = os.pipe()
    if (child := os.fork()) == 0:
        mapped = mmap.mmap(found.shared_fd, 0, prot=mmap.PROT_READ)
        os.write(write_end, mapped[-64:])
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read_end, 64) == bytes(found.pairs.data.numpy().tobytes()[-64:])
    os.close(read_end)
    os.close(write_end)


def test_what_is_not_shared_has_no_file(folder: Path) -> None:
    found = read_folder(folder, pages=SHARED)
    assert read_folder(folder).shared_fd is None
    placed = place(found, dtype=torch.float32, device="cpu")
    assert placed.pairs.shared is None, "the device's copy is its own"


def test_a_file_is_closed_with_the_adapter_however_many_come_and_go(folder: Path) -> None:
    before = num_open()
    held = [read_folder(folder, pages=SHARED) for _ in range(10)]
    assert num_open() == before + 10
    for number in range(300):
        held[number % 10] = read_folder(folder, pages=SHARED)
    assert num_open() == before + 10
    held.clear()
    assert num_open() == before


def test_the_tensor_outlives_the_file_s_number() -> None:
    pages = SharedPages.of(100, torch.bfloat16)
    data = pages.data.fill_(2)
    del pages
    assert data.sum() == 200


def test_the_file_cannot_change_its_size_under_those_who_map_it() -> None:
    pages = SharedPages.of(100, torch.float32)
    for num_bytes in (0, 800):
        with pytest.raises(PermissionError):
            os.ftruncate(pages.fd, num_bytes)


def test_where_too_many_files_are_open_an_adapter_comes_without_being_shared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = num_open()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2 * before, 10**6))
    held = [read_folder(folder, pages=SHARED) for _ in range(5)]
    assert held[-1].shared_fd is None
    assert torch.equal(held[-1].pairs.data, held[0].pairs.data)
    with pytest.raises(OSError, match="files") as raised:
        SharedPages.of(1, torch.float32)
    assert raised.value.errno == errno.EMFILE
    assert num_open() <= before + 5
