"""A real `loraplex serve`, started as a user starts it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

LORAPLEX = [sys.executable, "-m", "loraplex.platform.cli.main"]
QUICK = {
    "LORAPLEX_LOG_LEVEL": "debug",
    "LORAPLEX_CALIBRATION_S": "0",
    "LORAPLEX_SELF_TEST": "reference",
}
START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 60


@dataclass(slots=True)
class Served:
    """A running platform, what it said when it was ready, and where it keeps its data."""

    process: subprocess.Popen[str]
    data_dir: Path
    log_path: Path
    ready: dict = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.ready["url"]

    @property
    def base_model(self) -> str:
        return self.ready["base_model"]

    def key(self, tenant: str) -> str:
        return next(t["key"] for t in self.ready["tenants"] if t["name"] == tenant)

    def models(self) -> list[str]:
        return [model for t in self.ready["tenants"] for model in t["adapters"]]

    def post(self, key: str, body: dict, path: str = "/v1/chat/completions") -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.post(f"{self.url}{path}", json=body, headers=headers, timeout=120)

    def metric(self, name: str) -> float:
        """The value of one sample, named with its labels as the text has them."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, f"no metric {name}"
        return float(found[1])

    def log_lines(self) -> list[dict]:
        lines = self.log_path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def worker_pid(self) -> int:
        """The process whose parent is the platform's."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        (pid,) = children.split()
        return int(pid)

    def stop(self) -> int:
        """Press Ctrl-C, and return the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_TIMEOUT_S)


@contextlib.contextmanager
def serving(
    data_dir: Path, arguments: Sequence[str] = (), environment: dict[str, str] | None = None
) -> Iterator[Served]:
    """Start `loraplex serve` on `data_dir`, wait until it is ready, and end it in any case."""
    log_path = data_dir.with_name(f"{data_dir.name}.{time.monotonic_ns()}.log")
    command = [*LORAPLEX, "serve", "--json", "--port", "0", "--data-dir", str(data_dir)]
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | QUICK | (environment or {}),
        )
    served = Served(process, data_dir, log_path)
    watchdog = _killer(process, START_TIMEOUT_S)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        watchdog.cancel()
        assert line, f"serve did not start: {log_path.read_text()[-2000:]}"
        served.ready = json.loads(line)
        yield served
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def run_cli(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run one `loraplex` command to its end."""
    return subprocess.run(
        [*LORAPLEX, *arguments],
        check=False,
        capture_output=True,
        text=True,
        input=stdin,
        timeout=120,
    )


def usage_rows(data_dir: Path, tenant: str, database_url: str | None = None) -> list[dict]:
    """A tenant's usage as `usage show` prints it."""
    where = ["--data-dir", str(data_dir)]
    if database_url is not None:
        where += ["--database-url", database_url]
    shown = run_cli("usage", "show", "--json", "--tenant", tenant, *where)
    assert shown.returncode == 0, shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def _killer(process: subprocess.Popen[str], timeout_s: float) -> threading.Timer:
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    return timer
