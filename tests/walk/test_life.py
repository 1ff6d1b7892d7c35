"""The platform's own life: stopping, starting again, dying parts, and starts that cannot work."""

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from tests.walk.served import Served, run_cli, serving, usage_rows

from loraplex.platform.demo.seed import DEMO_ADAPTERS

LONG = {
    "temperature": 0,
    "max_tokens": 400,
    "messages": [{"role": "user", "content": "Write a long story about a lighthouse."}],
}


@contextlib.contextmanager
def open_stream(served: Served, body: dict) -> Iterator[Iterator[str]]:
    """Stream a completion; yields its data lines once the first text has come."""
    headers = {"Authorization": f"Bearer {served.key('acme')}"}
    request = {"model": served.base_model, "stream": True} | body
    url = f"{served.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=request, headers=headers, timeout=120) as reply:
        assert reply.status_code == 200
        lines = (line for line in reply.iter_lines() if line.startswith("data: "))
        for line in lines:
            if re.search(r'"content":"[^"]', line):
                break
        yield lines


def wait_until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.05)


def idle(served: Served) -> bool:
    running = served.metric('loraplex_worker_requests{state="running"}')
    return running == served.metric("loraplex_open_requests") == 0


def has_ended(process: Path) -> bool:
    try:
        return "Z (zombie)" in (process / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_ctrl_c_lets_open_requests_end_and_a_second_start_finds_everything_again(
    new_demo_data_dir: Callable[[], Path],
) -> None:
    data_dir = new_demo_data_dir()
    with serving(data_dir, environment={"LORAPLEX_CALIBRATION_S": "1"}) as served:
        assert "learned from" in served.log_path.read_text()
        before = served.ready["tenants"]
        with open_stream(served, LONG | {"max_tokens": 40}) as lines:
            served.process.send_signal(signal.SIGINT)
            assert list(lines)[-1] == "data: [DONE]"
        assert served.process.wait(30) == 0
        assert "Traceback" not in served.log_path.read_text()
    assert len(list((data_dir / "costs").glob("*.json"))) == 1
    rows = usage_rows(data_dir, "acme")
    assert [row["finish_reason"] for row in rows] == ["length"]
    with serving(data_dir) as again:
        assert again.ready["tenants"] == before
        assert usage_rows(data_dir, "acme") == rows
        reply = again.post(again.key("acme"), LONG | {"model": "acme/triage", "max_tokens": 4})
        assert reply.status_code == 200
        assert again.stop() == 0


def test_when_the_worker_is_killed_open_streams_end_with_an_error_and_it_comes_back(
    new_demo_data_dir: Callable[[], Path],
) -> None:
    with serving(new_demo_data_dir()) as served:
        with open_stream(served, LONG) as lines:
            os.kill(served.worker_pid(), signal.SIGKILL)
            last = list(lines)[-1]
        assert '"error"' in last
        assert '"service_unavailable_error"' in last
        body = LONG | {"model": served.base_model, "max_tokens": 4}
        reply = served.post(served.key("acme"), body)
        assert reply.status_code == 503
        assert float(reply.headers["retry-after"]) > 0
        wait_until(lambda: served.post(served.key("acme"), body).status_code == 200, 120)
        rows = usage_rows(served.data_dir, "acme")
        assert [row["finish_reason"] for row in rows] == ["error", "length"]
        assert rows[0]["completion_tokens"] >= 1


def test_when_the_platform_is_killed_its_worker_ends_too(
    new_demo_data_dir: Callable[[], Path],
) -> None:
    with serving(new_demo_data_dir()) as served:
        worker = Path(f"/proc/{served.worker_pid()}")
        served.process.kill()
        wait_until(lambda: has_ended(worker))


def test_a_client_that_leaves_in_the_middle_stops_the_engine_and_pays_what_ran(
    served: Served,
) -> None:
    num_before = len(usage_rows(served.data_dir, "acme"))
    with open_stream(served, LONG):
        pass
    wait_until(lambda: idle(served))
    *_, row = usage_rows(served.data_dir, "acme")
    assert len(usage_rows(served.data_dir, "acme")) == num_before + 1
    assert row["finish_reason"] == "abort"
    assert 1 <= row["completion_tokens"] < 400


def test_a_client_that_leaves_while_it_waits_for_a_whole_answer_stops_the_engine(
    served: Served,
) -> None:
    num_before = len(usage_rows(served.data_dir, "acme"))
    url = httpx.URL(served.url)
    with contextlib.closing(HTTPConnection(url.host, url.port)) as connection:
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps(LONG | {"model": served.base_model}),
            {"Authorization": f"Bearer {served.key('acme')}", "Content-Type": "application/json"},
        )
        wait_until(lambda: served.metric('loraplex_worker_requests{state="running"}') > 0)
    wait_until(lambda: idle(served))
    rows = usage_rows(served.data_dir, "acme")
    assert len(rows) == num_before + 1
    assert rows[-1]["finish_reason"] == "abort"


def test_an_adapter_that_is_pushed_can_be_called_at_once_and_only_by_its_tenant(
    served: Served,
) -> None:
    pushed = run_cli(
        *("adapter", "push", "globex/second", str(DEMO_ADAPTERS / "acme" / "triage")),
        *("--data-dir", str(served.data_dir)),
    )
    assert pushed.returncode == 0, pushed.stderr
    body = LONG | {"model": "globex/second", "max_tokens": 4}
    answer = served.post(served.key("globex"), body)
    assert answer.headers["x-loraplex-model"] == "globex/second@1"
    foreign = served.post(served.key("acme"), body)
    absent = served.post(served.key("acme"), body | {"model": "globex/nothing"})
    assert foreign.status_code == absent.status_code == 404
    assert foreign.text.replace("second", "nothing") == absent.text


def test_a_suspended_tenant_is_refused_until_it_is_resumed(served: Served) -> None:
    body = LONG | {"model": served.base_model, "max_tokens": 2}
    at = ("--data-dir", str(served.data_dir))
    run_cli("tenant", "suspend", "globex", *at)
    try:
        assert served.post(served.key("globex"), body).status_code == 403
    finally:
        run_cli("tenant", "resume", "globex", *at)
    assert served.post(served.key("globex"), body).status_code == 200


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--model", "/nowhere/model"], {}, "/nowhere/model"),
        ([], {"LORAPLEX_KV_MEMORY_BYTES": "1000000"}, "LORAPLEX_KV_MEMORY_BYTES"),
        ([], {"LORAPLEX_ADAPTER_MEMORY_BYTES": str(1 << 50)}, "LORAPLEX_ADAPTER_MEMORY_BYTES"),
        (["--database-url", "sqlite+aiosqlite:////proc/x/l.db"], {}, "/proc/x/l.db"),
        (["--database-url", "mysql://x/y"], {}, "supported are"),
        ([], {"LORAPLEX_BLOCK_SIZE": "many"}, "LORAPLEX_BLOCK_SIZE"),
    ],
)
def test_a_start_that_cannot_work_says_why_in_a_line(
    new_demo_data_dir: Callable[[], Path],
    arguments: list[str],
    environment: dict[str, str],
    message: str,
) -> None:
    refuses_to_start(new_demo_data_dir(), message, arguments, environment)


def test_a_port_in_use_is_told_with_a_way_out(new_demo_data_dir: Callable[[], Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refuses_to_start(new_demo_data_dir(), "choose another port", ["--port", port], {})


def test_a_second_platform_on_one_data_directory_is_refused(served: Served) -> None:
    refuses_to_start(served.data_dir, "another `loraplex serve`", [], {})
    elsewhere = ["--data-dir", str(served.data_dir / "other")]
    environment = {"LORAPLEX_WORKER_ADDRESS": f"unix:{served.data_dir / 'worker.sock'}"}
    refuses_to_start(served.data_dir, "another worker listens", elsewhere, environment)
    body = LONG | {"model": served.base_model, "max_tokens": 2}
    assert served.post(served.key("acme"), body).status_code == 200


def refuses_to_start(
    data_dir: Path, message: str, arguments: list[str], environment: dict[str, str]
) -> None:
    with pytest.raises(AssertionError) as refused, serving(data_dir, arguments, environment):
        pass
    told = str(refused.value)
    assert "error: " in told
    assert message in told
    assert "Traceback" not in told
