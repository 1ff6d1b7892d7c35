"""The stream's secret as Helm makes it and the worker's probe, against the engine's own stream."""

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helm.chart import environment, render, worker
from tests.helm.idle_worker import started

from loraplex.engine.client import StreamClient
from loraplex.engine.frames import Security, TcpAddress, parse_address


def test_the_token_that_helm_makes_cannot_be_guessed(security: Security) -> None:
    assert len(security.token) >= 32
    assert security.token.isalnum()


def test_the_workers_address_is_one_that_it_accepts(security: Security) -> None:
    known = environment(worker(render({}))["spec"]["template"]["spec"])
    address = parse_address(known["LORAPLEX_WORKER_ADDRESS"]["value"], security)
    assert address == TcpAddress("0.0.0.0", 7411)


async def test_a_gateway_trusts_a_worker_with_the_certificate_that_helm_makes(
    security: Security, unused_tcp_port: int, tmp_path: Path
) -> None:
    server = await started(security, unused_tcp_port, tmp_path)
    gateway = Security(security.token, security.tls_cert)
    client = StreamClient(TcpAddress("127.0.0.1", unused_tcp_port), gateway, max_events=8)
    client.start()
    async with asyncio.timeout(60):
        await client.wait_connected()
    await client.close()
    await server.close()


async def test_the_probe_succeeds_once_the_worker_listens(
    security: Security, unused_tcp_port: int, tmp_path: Path
) -> None:
    server = await started(security, unused_tcp_port, tmp_path)
    assert await _probe(unused_tcp_port) == 0
    await server.close()


async def test_the_probe_fails_while_nothing_listens(unused_tcp_port: int) -> None:
    assert await _probe(unused_tcp_port) != 0


async def test_the_probe_fails_where_a_process_listens_and_does_not_answer(
    unused_tcp_port: int,
) -> None:
    with _hanging(unused_tcp_port):
        assert await _probe(unused_tcp_port, timeout_s=0.2) != 0


@contextmanager
def _hanging(port: int) -> Iterator[None]:
    """The kernel accepts connections for a process whose event loop stands still."""
    with socket.create_server(("127.0.0.1", port)):
        yield


async def _probe(port: int, timeout_s: float = 8) -> int:
    """Run the readiness probe's command as the kubelet does, and return its exit status."""
    (container,) = worker(render({}))["spec"]["template"]["spec"]["containers"]
    command = container["readinessProbe"]["exec"]["command"]
    assert command[0] == "python"
    assert "timeout=8" in command[2]
    script = command[2].replace("timeout=8", f"timeout={timeout_s}")
    address = {"LORAPLEX_WORKER_ADDRESS": f"tcp://0.0.0.0:{port}"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        env=os.environ | address,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait()
