"""What is particular to a store that is elsewhere: the folder that its versions are read in."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Condition
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters import build

from loraplex.adapters.checkpoint import TENSORS_FILE, Checkpoint, inspect
from loraplex.adapters.errors import AdapterCorrupt, AdapterMissing
from loraplex.adapters.opened_store import StoreUrlInvalid, open_store, shown_url
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
    (tensors,) = (path for path in files.find("/a") if path.endswith(TENSORS_FILE))
    files.pipe_file(tensors, data)
    reader = RemoteStore(files, "/a", tmp_path / "reader", GIB)
    with pytest.raises(AdapterCorrupt):
        reader.open(digest)
    assert not list((tmp_path / "reader").rglob("*.safetensors"))


@pytest.mark.parametrize(
    "manifest",
    [
        b'{"folder": "00000000000000000000000000000000", "files": {"../../evil": 1}}',
        b'{"folder": "../0000000000000000000000000000000", "files": {}}',
    ],
)
def test_a_manifest_cannot_name_files_outside_its_folder(tmp_path: Path, manifest: bytes) -> None:
    files = Counting()
    digest = "a" * 64
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


def test_a_version_that_lost_a_file_or_a_part_of_one_is_stored_again(tmp_path: Path) -> None:
    files = Counting()
    (checkpoint,) = checkpoints(tmp_path, 1)
    for spoil in (files.rm_file, lambda path: files.pipe_file(path, b"x")):
        RemoteStore(files, "/a", tmp_path / "writer", GIB).put(checkpoint)
        spoil(next(path for path in files.find("/a") if path.endswith(TENSORS_FILE)))
        RemoteStore(files, "/a", tmp_path / "writer", GIB).put(checkpoint)
        reader = RemoteStore(files, "/a", tmp_path / f"reader{files.num_read}", GIB)
        assert inspect(reader.open(checkpoint.digest), build.base()).digest == checkpoint.digest


def test_what_a_killed_writer_or_remover_left_in_the_bucket_is_swept_when_it_is_old(
    tmp_path: Path,
) -> None:
    files = Counting()
    kept, half = checkpoints(tmp_path, 2)
    store = RemoteStore(files, "/a", tmp_path / "writer", GIB)
    store.put(kept)
    whole = set(files.find("/a"))
    store.put(half)
    files.rm_file(f"/a/{half.digest[:2]}/{half.digest}/version.json")
    store.remove_partial(time.time() - 60)
    assert len(files.find("/a")) == 5, "nothing of it is old"
    store.remove_partial(time.time() + 60)
    assert set(files.find("/a")) == whole
    assert store.stored(time.time() - 60) == []
    assert store.stored(time.time() + 60) == [kept.digest]


class Killed(BaseException):
    """What ends a process in the middle."""


class Turns:
    """Lets actors call one at a time, in the order of a schedule; each dies after so many calls."""

    def __init__(self, schedule: list[int], lives: list[int]) -> None:
        self._schedule = iter(schedule)
        self._left = dict(enumerate(lives))
        self._turn: int | None = None
        self._changed = Condition()

    def take(self, actor: int, call: Callable[[], Any]) -> Any:
        with self._changed:
            assert self._changed.wait_for(lambda: self._whose() == actor, timeout=60)
        try:
            self._left[actor] -= 1
            if self._left[actor] < 0:
                raise Killed
            return call()
        finally:
            with self._changed:
                self._turn = None
                self._changed.notify_all()

    def leave(self, actor: int) -> None:
        with self._changed:
            del self._left[actor]
            self._turn = None
            self._changed.notify_all()

    def _whose(self) -> int:
        if self._turn is None:
            self._turn = next((a for a in self._schedule if a in self._left), min(self._left))
        return self._turn


class InTurn(Counting):
    """The file system of one actor, whose calls wait for its turn."""

    def __init__(self, shared: Counting, turns: Turns, actor: int) -> None:
        super().__init__()
        self.store, self.pseudo_dirs = shared.store, shared.pseudo_dirs
        self._turns, self._actor, self._is_in = turns, actor, False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in {"cat_file", "put_file", "pipe_file", "exists", "rm_file", "size"}:
            return found

        def in_turn(*args: Any, **kwargs: Any) -> Any:
            if self._is_in:
                return found(*args, **kwargs)
            return self._turns.take(self._actor, lambda: self._alone(found, *args, **kwargs))

        return in_turn

    def _alone(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._is_in = True
        try:
            return call(*args, **kwargs)
        finally:
            self._is_in = False


LIVES = st.one_of(st.just(100), st.integers(0, 9))


@settings(max_examples=150, deadline=None)
@given(
    was_there=st.booleans(),
    schedule=st.lists(st.integers(0, 2), max_size=30),
    lives=st.tuples(LIVES, LIVES, LIVES),
)
def test_whoever_writes_removes_or_dies_meanwhile_a_manifest_names_a_whole_folder(
    version: tuple[Checkpoint, Path], was_there: bool, schedule: list[int], lives: tuple[int, ...]
) -> None:
    """Two writers and a remover, interleaved at each call."""
    (checkpoint, caches), shared = version, Counting()
    turns = Turns(schedule, list(lives))
    if was_there:
        RemoteStore(shared, "/a", caches / "before", GIB).put(checkpoint)
    stores = [RemoteStore(InTurn(shared, turns, i), "/a", caches / str(i), GIB) for i in range(3)]
    for store in stores:
        store._cache.put(checkpoint)

    def act(actor: int) -> None:
        with suppress(Killed):
            if actor == 2:
                stores[actor].remove(checkpoint.digest)
            else:
                stores[actor].put(checkpoint)
        turns.leave(actor)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(act, range(3)))
    reader = RemoteStore(shared, "/a", caches / "reader", GIB)
    if shared.exists(f"/a/{checkpoint.digest[:2]}/{checkpoint.digest}/version.json"):
        assert reader._is_whole(checkpoint.digest)


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Path]:
    folder = tmp_path_factory.mktemp("version")
    return checkpoints(folder, 1)[0], folder / "caches"


def test_a_store_that_does_not_answer_is_an_os_error(tmp_path: Path) -> None:
    class Failing(Counting):
        def cat_file(self, *args, **kwargs):
            raise RuntimeError("connection reset")

    with pytest.raises(OSError, match="connection reset"):
        RemoteStore(Failing(), "/a", tmp_path / "reader", GIB).open("a" * 64)


def test_an_unknown_kind_of_store_is_refused_by_its_url(tmp_path: Path) -> None:
    with pytest.raises(StoreUrlInvalid, match="nothing://x"):
        open_store("nothing://x", tmp_path, GIB)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/loras", "s3://bucket/loras"),
        ("s3://key:se/cr?et@bucket/loras", "s3://…"),
        ("s3://bucket/loras?token=a@b", "s3://…"),
        ("/srv/a@b", "/srv/a@b"),
    ],
)
def test_messages_show_nothing_of_a_url_that_may_be_a_key(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_a_url_that_opens_no_store_is_told_without_its_key(tmp_path: Path) -> None:
    with pytest.raises(StoreUrlInvalid) as refused:
        open_store("nothing://key:secret@bucket", tmp_path, 0)
    assert "secret" not in str(refused.value)


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
