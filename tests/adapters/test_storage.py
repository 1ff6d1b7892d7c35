import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from tests.adapters import build

from loraplex.adapters.checkpoint import compute_digest, inspect
from loraplex.adapters.errors import AdapterCorrupt, AdapterMissing, CheckpointInvalid
from loraplex.adapters.storage import AdapterStore

FILES = ["adapter_config.json", "adapter_model.safetensors"]


@pytest.fixture
def checkpoint(tmp_path):
    return inspect(build.save(tmp_path / "upload"), build.base())


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_what_a_disk_has_spoilt_is_mended_by_storing_it_again(root, checkpoint):
    store = AdapterStore(root)
    tensors = store.put(checkpoint) / FILES[1]
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)
    assert compute_digest(store.open(checkpoint.digest)) != checkpoint.digest
    store.put(checkpoint)
    assert compute_digest(store.open(checkpoint.digest)) == checkpoint.digest


def test_a_stored_adapter_lies_under_its_digest(root, checkpoint):
    digest = checkpoint.digest
    home = AdapterStore(root).put(checkpoint)
    assert home == root / digest[:2] / digest == AdapterStore(root).open(digest)
    for name in FILES:
        assert (home / name).read_bytes() == (checkpoint.directory / name).read_bytes()


def test_only_the_two_files_are_stored(root, checkpoint):
    (checkpoint.directory / "optimizer.pt").touch()
    home = AdapterStore(root).put(checkpoint)
    assert files(home) == FILES


def test_storing_twice_is_storing_once(root, checkpoint):
    store = AdapterStore(root)
    home = store.put(checkpoint)
    for name in FILES:
        (checkpoint.directory / name).unlink()
    assert store.put(checkpoint) == home  # without reading the upload again
    assert files(home) == FILES


def test_many_threads_may_store_the_same_adapter(root, checkpoint):
    barrier = Barrier(8)

    def put(_):
        barrier.wait()
        return AdapterStore(root).put(checkpoint)

    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(put, range(8)))
    assert len(homes) == 1
    assert len(files(root)) == 2


def test_processes_may_store_the_same_adapter(root, checkpoint):
    code = (
        "import sys; from pathlib import Path; from tests.adapters import build;"
        "from loraplex.adapters.checkpoint import inspect;"
        "from loraplex.adapters.storage import AdapterStore;"
        "c = inspect(Path(sys.argv[1]), build.base()); print('ready', flush=True);"
        "sys.stdin.readline(); AdapterStore(Path(sys.argv[2])).put(c)"
    )
    command = [sys.executable, "-c", code, str(checkpoint.directory), str(root)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        child.communicate()
        assert child.returncode == 0
    assert len(files(root)) == 2


def test_a_crash_while_storing_leaves_nothing_that_looks_stored(root, checkpoint, monkeypatch):
    def crash(source, target):
        raise OSError(28, "no space left")

    monkeypatch.setattr("loraplex.adapters.storage.shutil.copyfile", crash)
    with pytest.raises(OSError, match="no space"):
        AdapterStore(root).put(checkpoint)
    assert files(root) == []
    with pytest.raises(AdapterMissing):
        AdapterStore(root).open(checkpoint.digest)


def test_a_weight_that_changes_between_check_and_copy_is_noticed(root, checkpoint):
    path = checkpoint.directory / FILES[1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(AdapterCorrupt):
        AdapterStore(root).put(checkpoint)
    assert files(root) == []


def test_a_file_that_is_cut_between_check_and_copy_is_noticed(root, checkpoint):
    path = checkpoint.directory / FILES[1]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointInvalid):
        AdapterStore(root).put(checkpoint)
    assert files(root) == []


def test_what_killed_processes_left_is_swept_when_it_is_old(root, checkpoint):
    store = AdapterStore(root)
    home = store.put(checkpoint)
    for kind in ("partial", "removed"):
        (root / f".{checkpoint.digest}.0.{kind}").mkdir()
    store.remove_partial(time.time() - 60)
    assert len(list(root.glob(".*"))) == 2, "nothing of it is old"
    store.remove_partial(time.time() + 60)
    assert list(root.iterdir()) == [home.parent]
    assert store.stored(time.time() - 60) == []
    assert store.stored(time.time() + 60) == [checkpoint.digest]


@pytest.mark.parametrize("name", ["", "..", "../upload", "0" * 63, "0" * 65, "A" * 64, "/etc"])
def test_a_name_that_is_no_digest_is_missing(root, checkpoint, name):
    AdapterStore(root).put(checkpoint)
    with pytest.raises(AdapterMissing):
        AdapterStore(root).open(name)


def test_the_bytes_needed_follow_from_the_header_alone(root, checkpoint):
    store = AdapterStore(root)
    store.put(checkpoint)
    num_elements = 2 * (2 * build.IN + build.OUT * 2)
    assert sum(e.num_elements for e in store.head(checkpoint.digest).entries) == num_elements


def test_the_bytes_of_a_corrupt_adapter_are_unknown(root, checkpoint):
    store = AdapterStore(root)
    (store.put(checkpoint) / FILES[1]).write_bytes(b"")
    with pytest.raises(AdapterCorrupt):
        store.head(checkpoint.digest)
