"""What is particular to a store that is elsewhere: the folder that its versions are read in."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from tests.adapters import build

from loraplex.adapters.checkpoint import TENSORS_FILE, Checkpoint, inspect
from loraplex.adapters.errors import AdapterCorrupt, AdapterMissing
from loraplex.adapters.opened_store import StoreUrlInvalid, open_store
from loraplex.adapters.remote_storage import IN_USE_S, RemoteStore

GIB = 1 << 30


class Counting(fsspec.get_filesystem_class("memory")):
    """A file system in memory that counts what is read of it."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store = {}
        self.pseudo_dirs = [""]
        self.num_read = 0

    def get_file(self, *args, **kwargs):
        self.num_read += 1
        return super().get_file(*args, **kwargs)


def checkpoints(folder: Path, number: int) -> list[Checkpoint]:
    return [
        inspect(build.save(folder / f"mine{i}", {"lora_alpha": i + 1}), build.base())
        for i in range(number)
    ]


def test_a_version_comes_once_however_many_ask_for_it(tmp_path: Path) -> None:
    files = Counting()
    (checkpoint,) = checkpoints(tmp_path, 1)
    RemoteStore(files, "/a", tmp_path / "writer", GIB).put(checkpoint)
    reader = RemoteStore(files, "/a", tmp_path / "reader", GIB)
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(reader.open, [checkpoint.digest] * 8))
    assert len(homes) == 1
    assert files.num_read == 2
    assert reader._coming == {}


def test_nothing_is_kept_of_a_version_that_does_not_come(tmp_path: Path) -> None:
    reader = RemoteStore(Counting(), "/a", tmp_path / "reader", GIB)
    with pytest.raises(AdapterMissing):
        reader.open("0" * 64)
    assert reader._coming == {}


def test_the_folder_keeps_what_was_used_last_within_its_bound(tmp_path: Path) -> None:
    files = Counting()
    several = checkpoints(tmp_path, 4)
    writer = RemoteStore(files, "/a", tmp_path / "writer", GIB)
    for checkpoint in several:
        writer.put(checkpoint)
    size = sum(f.stat().st_size for f in writer.open(several[0].digest).iterdir())
    cache = tmp_path / "reader"
    reader = RemoteStore(files, "/a", cache, int(2.5 * size))
    long_ago_s = time.time() - 10 * IN_USE_S
    for age, checkpoint in enumerate(several[:3]):
        os.utime(reader.open(checkpoint.digest), (long_ago_s + age,) * 2)
    reader.open(several[3].digest)
    assert {home.name for home in cache.glob("??/*")} == {c.digest for c in several[2:]}
    assert reader.open(several[0].digest).is_dir()  # and comes again


def test_a_version_that_was_opened_a_moment_ago_stays(tmp_path: Path) -> None:
    files = Counting()
    reader = RemoteStore(files, "/a", tmp_path / "reader", 1)
    homes = [reader.put(checkpoint) for checkpoint in checkpoints(tmp_path, 3)]
    assert all(home.is_dir() for home in homes)


@pytest.mark.parametrize("data", [b"", b"x" * 100])
def test_bytes_that_were_changed_elsewhere_are_refused(tmp_path: Path, data: bytes) -> None:
    files = Counting()
    (checkpoint,) = checkpoints(tmp_path, 1)
    digest = checkpoint.digest
    RemoteStore(files, "/a", tmp_path / "writer", GIB).put(checkpoint)
    files.pipe_file(f"/a/{digest[:2]}/{digest}/{TENSORS_FILE}", data)
    reader = RemoteStore(files, "/a", tmp_path / "reader", GIB)
    with pytest.raises(AdapterCorrupt):
        reader.open(digest)
    assert not list((tmp_path / "reader").rglob("*.safetensors"))


def test_a_manifest_cannot_name_files_outside_its_folder(tmp_path: Path) -> None:
    files = Counting()
    digest = "a" * 64
    manifest = b'{"files": {"../../evil": 1}}'
    files.pipe_file(f"/a/aa/{digest}/version.json", manifest)
    with pytest.raises(AdapterCorrupt, match="no version has"):
        RemoteStore(files, "/a", tmp_path / "reader", GIB).open(digest)


def test_a_version_whose_manifest_is_not_written_yet_is_missing(tmp_path: Path) -> None:
    files = Counting()
    (checkpoint,) = checkpoints(tmp_path, 1)
    digest = checkpoint.digest
    RemoteStore(files, "/a", tmp_path / "writer", GIB).put(checkpoint)
    files.rm_file(f"/a/{digest[:2]}/{digest}/version.json")
    with pytest.raises(AdapterMissing):
        RemoteStore(files, "/a", tmp_path / "reader", GIB).open(digest)


def test_a_store_that_does_not_answer_is_an_os_error(tmp_path: Path) -> None:
    class Failing(Counting):
        def cat_file(self, *args, **kwargs):
            raise RuntimeError("connection reset")

    with pytest.raises(OSError, match="connection reset"):
        RemoteStore(Failing(), "/a", tmp_path / "reader", GIB).open("a" * 64)


def test_an_unknown_kind_of_store_is_refused_by_its_url(tmp_path: Path) -> None:
    with pytest.raises(StoreUrlInvalid, match="nothing://x"):
        open_store("nothing://x", tmp_path, GIB)


def test_a_local_store_loads_no_remote_driver(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from loraplex.adapters.opened_store import open_store;"
        "open_store(None, Path(sys.argv[1]), 1);"
        "print(sorted({'fsspec', 's3fs', 'botocore'} & sys.modules.keys()))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"
