"""What every store of adapters does, in a folder and in an S3 bucket behind a real server."""

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
from tests.adapters import build

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE, Checkpoint, inspect
from loraplex.adapters.digest import with_profile
from loraplex.adapters.errors import AdapterCorrupt, AdapterMissing, CheckpointInvalid
from loraplex.adapters.opened_store import open_store
from loraplex.adapters.profile import Profile
from loraplex.adapters.storage import Store, profile_of

GIB = 1 << 30


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return inspect(build.save(tmp_path / "upload"), build.base())


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a store is to be: an empty folder, or a new bucket."""
    if request.param == "folder":
        return str(tmp_path / "store")
    s3 = request.getfixturevalue("s3")
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3.make_bucket()}/adapters"


@pytest.fixture
def store(url: str, tmp_path: Path) -> Store:
    return opened(url, tmp_path / "data")


def opened(url: str, data_dir: Path) -> Store:
    """As a process with this data directory opens it."""
    return open_store(url, data_dir, GIB)


def test_what_is_put_is_opened_by_another_machine(
    url: str, store: Store, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    store.put(checkpoint)
    home = opened(url, tmp_path / "other").open(checkpoint.digest)
    for name in (CONFIG_FILE, TENSORS_FILE):
        assert (home / name).read_bytes() == (checkpoint.directory / name).read_bytes()


def test_other_files_of_the_folder_are_not_stored(
    url: str, store: Store, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    for name in ("optimizer.pt", "README.md", "tokenizer.json"):
        (checkpoint.directory / name).write_text("{}")
    store.put(checkpoint)
    home = opened(url, tmp_path / "other").open(checkpoint.digest)
    assert sorted(file.name for file in home.iterdir()) == [CONFIG_FILE, TENSORS_FILE]


def test_a_profile_and_its_tokenizer_are_stored_under_a_digest_of_their_own(
    url: str, store: Store, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    tokenizer = b'{"model": {}}'
    (checkpoint.directory / "tokenizer.json").write_bytes(tokenizer)
    profile = Profile(tokenizer_sha256=hashlib.sha256(tokenizer).hexdigest(), temperature=0.5)
    version = replace(checkpoint, digest=with_profile(checkpoint.digest, profile.kept()))
    assert version.digest != checkpoint.digest
    store.put(version, profile.kept())
    elsewhere, asked = tmp_path / "other", (version.digest, "tokenizer.json")
    sha256 = hashlib.sha256(tokenizer).hexdigest()
    assert opened(url, elsewhere).read_file(*asked, sha256) == tokenizer
    assert not list(elsewhere.rglob(TENSORS_FILE)), "only that file was read"
    home = opened(url, elsewhere).open(version.digest)
    assert profile_of(home) == profile
    for reader in (opened(url, elsewhere), opened(url, tmp_path / "third")):
        assert reader.read_file(*asked, sha256) == tokenizer
        with pytest.raises(AdapterCorrupt, match="another"):
            reader.read_file(*asked, "0" * 64)
    with pytest.raises(AdapterMissing):
        store.open(checkpoint.digest)


def test_a_profile_that_is_not_the_digests_is_refused(store: Store, checkpoint: Checkpoint) -> None:
    with pytest.raises(AdapterCorrupt):
        store.put(checkpoint, Profile(temperature=0.5).kept())
    with pytest.raises(AdapterMissing):
        store.open(checkpoint.digest)


def test_what_is_stored_is_not_read_again(store: Store, checkpoint: Checkpoint) -> None:
    home = store.put(checkpoint)
    (checkpoint.directory / CONFIG_FILE).unlink()
    assert store.put(checkpoint) == home


def test_an_absent_version_is_missing(store: Store) -> None:
    with pytest.raises(AdapterMissing):
        store.open("0" * 64)
    with pytest.raises(AdapterMissing):
        store.read_file("0" * 64, CONFIG_FILE, "0" * 64)
    with pytest.raises(AdapterMissing):
        store.head("0" * 64)


@pytest.mark.parametrize("name", ["", "..", "../upload", "0" * 63, "0" * 65, "A" * 64, "/etc"])
def test_a_name_that_is_no_digest_is_missing(store: Store, name: str) -> None:
    for ask in (store.open, store.head):
        with pytest.raises(AdapterMissing):
            ask(name)
    store.remove(name)


def test_threads_and_machines_may_store_the_same_version(
    url: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    barrier = Barrier(6)
    stores = [opened(url, tmp_path / f"machine{number}") for number in range(3)]

    def put(number: int) -> None:
        barrier.wait()
        stores[number % 3].put(checkpoint)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(put, range(6)))
    home = opened(url, tmp_path / "other").open(checkpoint.digest)
    assert inspect(home, build.base()).digest == checkpoint.digest


def test_a_weight_that_changes_between_check_and_copy_is_noticed(
    store: Store, checkpoint: Checkpoint
) -> None:
    path = checkpoint.directory / TENSORS_FILE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(AdapterCorrupt):
        store.put(checkpoint)
    path.write_bytes(data[:-1])
    with pytest.raises(CheckpointInvalid):
        store.put(checkpoint)
    with pytest.raises(AdapterMissing):
        store.open(checkpoint.digest)


def test_a_removed_version_is_missing_everywhere_it_was_not_read(
    url: str, store: Store, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    store.put(checkpoint)
    store.remove(checkpoint.digest)
    store.remove(checkpoint.digest)
    for ask in (store.open, opened(url, tmp_path / "other").open):
        with pytest.raises(AdapterMissing):
            ask(checkpoint.digest)
    store.put(checkpoint)
    assert store.open(checkpoint.digest).is_dir()


def test_the_bytes_needed_are_known_without_fetching_the_tensors(
    url: str, store: Store, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    store.put(checkpoint)
    num_elements = 2 * (2 * build.IN + build.OUT * 2)
    other = opened(url, tmp_path / "other")
    assert sum(e.num_elements for e in other.head(checkpoint.digest).entries) == num_elements
    assert not list((tmp_path / "other").rglob("*.safetensors"))


def test_a_process_that_is_killed_while_it_stores_leaves_nothing_that_looks_stored(
    url: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """It dies once for each call that writes, by a trace of what the store calls."""
    code = """
import os, sys
from pathlib import Path
from tests.adapters import build
from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.opened_store import open_store
checkpoint = inspect(Path(sys.argv[1]), build.base())
store = open_store(sys.argv[2], Path(sys.argv[3]), 1 << 30)
left = int(sys.argv[4])
names = {"open", "shutil.copyfile", "os.rename", "os.mkdir", "socket.connect"}
def watch(event, args):
    global left
    if event in names:
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
sys.addaudithook(watch)
store.put(checkpoint)
"""
    for num_steps in (1, 3, 6, 9, 14):
        data_dir = tmp_path / f"killed{num_steps}"
        command = [sys.executable, "-c", code, str(checkpoint.directory), url, str(data_dir)]
        child = subprocess.run([*command, str(num_steps)], env=os.environ, check=False)
        reader = opened(url, tmp_path / f"reader{num_steps}")
        if child.returncode == 0:
            break
        assert child.returncode == -9
        try:
            home = reader.open(checkpoint.digest)
        except AdapterMissing:
            continue
        assert inspect(home, build.base()).digest == checkpoint.digest
    opened(url, tmp_path / "last").put(checkpoint)
    assert opened(url, tmp_path / "reads").open(checkpoint.digest).is_dir()
