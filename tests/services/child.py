"""Servers that tests start: children that end with this process, in short folders of their own."""

import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.01
NEEDED_BYTES = 1 << 30
NOBODY = pwd.getpwnam("nobody")
NAMESPACE = (
    "unshare",
    "--user",
    f"--map-user={NOBODY.pw_uid}",
    f"--map-group={NOBODY.pw_gid}",
)


class ServerDied(Exception):
    """A server ended at once; the message has what it said."""


class Folder:
    """A folder whose path is short: the path of a Unix socket has room for 107 bytes.

    It is in memory where that has room, so that no test waits for a busy disk.
    """

    def __init__(self, prefix: str) -> None:
        memory = Path("/dev/shm")
        has_room = memory.exists() and shutil.disk_usage(memory).free > NEEDED_BYTES
        parent = memory if has_room else Path("/tmp")
        _remove_left_over(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}-{os.getpid()}-", dir=parent))

    def remove(self) -> None:
        shutil.rmtree(self.path)


def _remove_left_over(parent: Path) -> None:
    """Remove folders of processes that were killed: their names have the process id."""
    for folder in parent.glob("lx*-*-*"):
        pid = folder.name.split("-")[1]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def ending_with_us(command: Sequence[str | Path], signal_name: str) -> list[str]:
    """The command, told to take this signal when the thread that starts it ends, however it does.

    The kernel forgets the wish when credentials change, so it stands closest to the server.
    """
    return ["setpriv", "--pdeathsig", signal_name, *map(str, command)]


def unprivileged(command: list[str], writes_to: Path) -> tuple[list[str], dict[str, Any]]:
    """The command and options of `subprocess` that run it as another user than root.

    In a user namespace the server believes to be nobody, while its files stay ours and may lie in
    folders that are closed to others. Where that is forbidden, it really runs as nobody.
    """
    if os.geteuid() != 0:
        return command, {}
    if has_namespaces():
        return [*NAMESPACE, *command], {}
    return as_nobody(command, writes_to)


def has_namespaces() -> bool:
    """Whether a process may make a user namespace; containers often forbid it."""
    return subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0


def as_nobody(command: list[str], writes_to: Path) -> tuple[list[str], dict[str, Any]]:
    """The command and options that run it as the user nobody, who gets the folder."""
    shutil.chown(writes_to, NOBODY.pw_uid, NOBODY.pw_gid)
    return command, {"user": NOBODY.pw_uid, "group": NOBODY.pw_gid, "extra_groups": []}


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """Kill a server's first process with SIGKILL, and return when its children have seen that.

    Until then a database cannot start again: they hold its memory.
    """
    # A stopped process makes no more children.
    process.send_signal(signal.SIGSTOP)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    descriptors = [os.pidfd_open(int(child)) for child in children]
    process.kill()
    process.wait()
    for descriptor in descriptors:
        wait_until_ended(descriptor)


def wait_until_ended(descriptor: int) -> None:
    """Return when the process of this descriptor ended; it need not be a child of ours."""
    ended, _, _ = select.select([descriptor], [], [], STOP_TIMEOUT_S)
    os.close(descriptor)
    assert ended, "a process does not end"


def wait_until_ready(
    process: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Path
) -> None:
    """Return when the server answers. Raises ServerDied."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise ServerDied(f"{process.args!r} does not serve:\n{log.read_text()[-2000:]}")
        time.sleep(POLL_S)
