"""A gateway started with the environment that the chart gives it, and the chart's own test."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.helm.chart import environment, gateway, one, render
from tests.helm.idle_worker import started

from loraplex.engine.frames import Security

LORAPLEX = [sys.executable, "-m", "loraplex.platform.cli.main"]


@dataclass(slots=True)
class Release:
    """A gateway's process, and the environment of its pod."""

    process: Process
    environment: dict[str, str]
    address: str


@pytest.fixture
async def release(
    security: Security, tmp_path: Path, unused_tcp_port_factory
) -> AsyncIterator[Release]:
    worker_port, port = unused_tcp_port_factory(), unused_tcp_port_factory()
    worker = await started(security, worker_port, tmp_path)
    known = _environment_of_the_pod(security, tmp_path, worker_port, port)
    process = await asyncio.create_subprocess_exec(
        *LORAPLEX, "gateway", env=known, stderr=PIPE, cwd=tmp_path
    )
    assert process.stderr is not None
    async with asyncio.timeout(60):
        while b"Gateway on" not in (line := await process.stderr.readline()):
            assert line, "the gateway ended"
        await worker.welcomed.wait()
    yield Release(process, known, f"127.0.0.1:{port}")
    if process.returncode is None:
        process.terminate()
    await process.wait()
    await worker.close()


async def test_the_charts_test_passes_with_and_without_a_tenants_key(release: Release) -> None:
    status, said = await _smoke(release.address)
    assert (status, "answered 401" in said) == (0, True), said
    await _loraplex(release, "tenant", "create", "initech")
    made = json.loads(await _loraplex(release, "key", "create", "initech", "--json"))
    status, said = await _smoke(release.address, made["key"])
    assert (status, "answered 200" in said) == (0, True), said


async def test_the_charts_test_fails_for_a_key_that_is_none(release: Release) -> None:
    status, said = await _smoke(release.address, "lpx_wrong")
    assert (status, "answered 401" in said) == (1, True), said


async def test_the_charts_test_fails_where_nothing_answers(unused_tcp_port: int) -> None:
    status, _ = await _smoke(f"127.0.0.1:{unused_tcp_port}")
    assert status == 1


def _environment_of_the_pod(
    security: Security, folder: Path, worker_port: int, port: int
) -> dict[str, str]:
    """The chart's environment; paths and addresses are those of this machine."""
    here = {
        "HOME": str(folder),
        "LORAPLEX_DATA_DIR": str(folder / "data"),
        "LORAPLEX_PORT": str(port),
        "LORAPLEX_WORKER_ADDRESS": f"tcp://127.0.0.1:{worker_port}",
        "LORAPLEX_WORKER_TLS_CERT": str(security.tls_cert),
        "LORAPLEX_WORKER_TOKEN": security.token,
    }
    given = environment(gateway(render({}))["spec"]["template"]["spec"])
    assert here.keys() <= given.keys()
    values = {name: each.get("value") for name, each in given.items()} | here
    outside = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return outside | values


async def _loraplex(release: Release, *arguments: str) -> str:
    """Run a command as `kubectl exec` does in the gateway's pod."""
    process = await asyncio.create_subprocess_exec(
        *LORAPLEX, *arguments, env=release.environment, stdout=PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return said.decode()


async def _smoke(address: str, key: str | None = None) -> tuple[int | None, str]:
    """Run the command of the chart's test pod; return its exit status and what it said."""
    (container,) = one(render({}), "Pod", "-smoke")["spec"]["containers"]
    program, *arguments = container["command"]
    assert program == "python"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env={"GATEWAY": address} | ({"TENANT_KEY": key} if key else {}),
        stdout=PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()
