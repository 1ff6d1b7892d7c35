"""A real cluster of three Valkey servers for tests, without replicas, on this machine alone."""

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from redis import ConnectionError as NoConnection
from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.services.child import STOP_TIMEOUT_S, Folder, ending_with_us, wait_until_ready
from tests.services.valkey import server_binary

NUM_SHARDS = 3
NUM_SLOTS = 16384
HOST = "127.0.0.1"


class ValkeyCluster:
    """Three servers that share the slots."""

    def __init__(self) -> None:
        self._folders = [Folder("lxvc") for _ in range(NUM_SHARDS)]
        self._ports = _free_ports(2 * NUM_SHARDS)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.client: RedisCluster

    @property
    def url(self) -> str:
        return f"redis+cluster://{HOST}:{self._ports[0]}"

    def start(self) -> None:
        """Start the servers, let them meet, and wait until all slots are served."""
        for shard in range(NUM_SHARDS):
            self._start(shard)
        once = Retry(NoBackoff(), 0)
        nodes = [Redis(HOST, port, retry=once) for port in self._ports[:NUM_SHARDS]]
        for shard, node in enumerate(nodes):
            self._wait(shard, partial(_answers, node))
            first, after = (NUM_SLOTS * edge // NUM_SHARDS for edge in (shard, shard + 1))
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", shard + 1)
        for shard in range(1, NUM_SHARDS):
            nodes[0].execute_command(
                "CLUSTER", "MEET", HOST, self._ports[shard], self._ports[NUM_SHARDS + shard]
            )
        for shard, node in enumerate(nodes):
            self._wait(shard, partial(_is_whole, node))
            node.close()
        self.client = RedisCluster(HOST, self._ports[0])

    def kill(self, shard: int) -> None:
        """Kill one server with SIGKILL."""
        self._processes[shard].kill()
        self._processes[shard].wait()

    def remove(self) -> None:
        """End the servers and delete their data."""
        self.client.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(STOP_TIMEOUT_S)
        for folder in self._folders:
            folder.remove()

    def _wait(self, shard: int, is_ready: Callable[[], bool]) -> None:
        wait_until_ready(self._processes[shard], is_ready, self._log(shard))

    def _log(self, shard: int) -> Path:
        return self._folders[shard].path / "log"

    def _start(self, shard: int) -> None:
        command = [
            *(server_binary(), "--port", self._ports[shard], "--bind", HOST),
            *("--cluster-enabled", "yes", "--cluster-port", self._ports[NUM_SHARDS + shard]),
            *("--dir", self._folders[shard].path, "--save", "", "--maxmemory-policy", "noeviction"),
        ]
        with self._log(shard).open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    ending_with_us([str(word) for word in command], "TERM"),
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )


@contextmanager
def running_cluster() -> Iterator[ValkeyCluster]:
    """A cluster that is gone at the end of the block."""
    cluster = ValkeyCluster()
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.remove()


def _free_ports(number: int) -> list[int]:
    """Ports that nobody listens on; they are looked for together, so that all differ."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _answers(node: Redis) -> bool:
    try:
        return bool(node.ping())
    except NoConnection:
        return False


def _is_whole(node: Redis) -> bool:
    """Whether it knows who serves each slot."""
    told = node.cluster("info")
    return told["cluster_state"] == "ok" and int(told["cluster_known_nodes"]) == NUM_SHARDS
