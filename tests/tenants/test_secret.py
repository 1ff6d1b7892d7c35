"""The deployment's secret: made once, kept from others, tied to the database."""

import threading
from pathlib import Path

import pytest

from loraplex.tenants import secret
from loraplex.tenants.db import Database
from loraplex.tenants.errors import SecretUnusable
from loraplex.tenants.secret import confirm_secret, load_secret


def test_the_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    first = load_secret(tmp_path / "data")
    assert len(first) >= 32
    assert load_secret(tmp_path / "data") == first
    assert (tmp_path / "data" / "secret").stat().st_mode & 0o777 == 0o600


def test_making_the_secret_leaves_no_other_file(tmp_path: Path) -> None:
    load_secret(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_two_data_directories_have_two_secrets(tmp_path: Path) -> None:
    assert load_secret(tmp_path / "a") != load_secret(tmp_path / "b")


def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    seen: list[bytes] = []
    start = threading.Barrier(8)

    def begin() -> None:
        start.wait()
        seen.append(load_secret(tmp_path))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert set(seen) == {load_secret(tmp_path)}


def test_whoever_comes_second_takes_the_secret_that_is_there(tmp_path: Path) -> None:
    first = load_secret(tmp_path)
    secret._create(tmp_path / "secret")
    assert load_secret(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_secret_in_the_settings_comes_first(tmp_path: Path) -> None:
    assert load_secret(tmp_path, "s" * 32) == b"s" * 32
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize("content", [b"", b"short", b" " * 100])
def test_a_secret_that_is_too_short_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret").write_bytes(content)
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(SecretUnusable, match="at least 32"):
        load_secret(tmp_path)


def test_a_short_secret_in_the_settings_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match="7 bytes") as refused:
        load_secret(tmp_path, "hunter2")
    assert "hunter2" not in str(refused.value)


def test_a_secret_that_others_may_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    load_secret(tmp_path)
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(SecretUnusable, match="chmod 600"):
        load_secret(tmp_path)


def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir(mode=0o700)
    with pytest.raises(SecretUnusable, match="Is a directory"):
        load_secret(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SecretUnusable, match="/file/secret cannot be used"):
        load_secret(tmp_path / "file")


async def test_the_database_keeps_to_the_secret_of_its_first_use(database: Database) -> None:
    async with database.session() as session:
        await confirm_secret(session, b"a" * 32)
    async with database.session() as session:
        await confirm_secret(session, b"a" * 32)
    with pytest.raises(SecretUnusable, match="not the one"):
        async with database.session() as session:
            await confirm_secret(session, b"b" * 32)
