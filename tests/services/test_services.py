"""The servers that tests start: real, gone with their parent, and up again after a kill."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from tests.services import child
from tests.services.postgres import Postgres, running_postgres
from tests.services.valkey import Valkey, running_valkey

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


def test_the_database_is_a_real_postgresql_without_a_port(postgres: Postgres) -> None:
    with postgres.connected() as connection:
        row = connection.execute("SELECT version(), current_setting('listen_addresses')").fetchone()
    assert row is not None
    assert row[0].startswith("PostgreSQL ")
    assert row[1] == ""


def test_commits_survive_a_kill_of_the_database_and_it_starts_again_at_once(
    own_postgres: Postgres,
) -> None:
    with own_postgres.connected() as connection:
        connection.execute("CREATE TABLE kept (number int)")
        for number in range(50):
            connection.execute("INSERT INTO kept VALUES (%s)", [number])
    own_postgres.kill()
    own_postgres.start()
    with own_postgres.connected() as connection:
        row = connection.execute("SELECT count(*), max(number) FROM kept").fetchone()
    assert row == (50, 49)


def test_a_killed_database_cuts_its_connections(own_postgres: Postgres) -> None:
    with own_postgres.connected() as connection:
        own_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    own_postgres.start()


def test_writes_survive_a_kill_of_the_store_and_it_starts_again_at_once() -> None:
    with running_valkey() as server:
        for number in range(50):
            server.client.set("kept", number)
        server.kill()
        with pytest.raises(redis.ConnectionError):
            server.client.ping()
        server.start()
        assert server.client.get("kept") == b"49"


@pytest.mark.parametrize("service", ["postgres", "valkey"])
def test_a_server_ends_with_a_parent_that_is_killed_and_its_data_goes_with_the_next_start(
    service: str,
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.services.start_and_wait", service],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid, folder = parent.stdout.readline().split()
    # A process that is no child of ours can be waited for through a descriptor alone.
    descriptor = os.pidfd_open(int(pid))
    parent.kill()
    parent.communicate()
    child.wait_until_ended(descriptor)
    assert Path(folder).exists()
    child.Folder("lxnext").remove()
    assert not Path(folder).exists()


def test_where_namespaces_are_forbidden_the_database_runs_as_another_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child, "has_namespaces", lambda: False)
    with running_postgres() as server:
        owner = Path(f"/proc/{server.pid}").stat().st_uid
        assert owner != 0
        assert server.version


def test_a_server_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_REDIS_SERVER", "/bin/false")
    server = Valkey()
    with pytest.raises(child.ServerDied, match="/bin/false"):
        server.start()
    server.remove()


@pytest.mark.parametrize("prefix", ["lxpg", "lxvk"])
def test_paths_of_sockets_are_short(prefix: str) -> None:
    folder = child.Folder(prefix)
    assert len(str(folder.path / ".s.PGSQL.5432.lock")) < 60
    folder.remove()
