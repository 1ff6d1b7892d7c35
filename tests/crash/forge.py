"""Makes processes quickly: it has everything imported, and forks for each line that it reads.

Its children die with it, and it ends with its standard input, that is with the tests.
"""

import asyncio
import ctypes
import os
import signal
import sys
from pathlib import Path

import msgspec
from tests.crash import points, worker
from tests.crash.starts import Start

import loraplex.platform.gateway
import loraplex.platform.reconciliation
import loraplex.tenants.migrate
from loraplex.platform.cli import main, quota, serving  # noqa: F401  imported before the fork

_PR_SET_PDEATHSIG = 1


def serve() -> None:
    """Fork for each line; answer with the child's process id."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        asked = msgspec.json.decode(line, type=Start)
        pid = os.fork()
        if pid == 0:
            _become(asked)
        print(pid, flush=True)  # noqa: T201  the answer


def _become(asked: Start) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(asked.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(asked.environment)
    status = 70
    try:
        if asked.dies_at:
            points.install(points.ALL[asked.dies_at], asked.number)
        command, *arguments = asked.arguments
        if command == "simulated-worker":
            socket, journal, epoch = arguments
            asyncio.run(worker.serve(Path(socket), Path(journal), epoch))
        else:
            main.app(asked.arguments)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001  whatever ends a child, the parent goes on
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    assert loraplex.platform.gateway
    assert loraplex.platform.reconciliation
    assert loraplex.tenants.migrate
    print("ready", flush=True)  # noqa: T201  the answer
    serve()
