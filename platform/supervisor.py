"""Keeps a worker process running beside the gateway."""

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress

from loraplex.platform.child_environment import child_environment
from loraplex.platform.settings import Settings

_log = logging.getLogger(__name__)

WORKER = (sys.executable, "-m", "loraplex.platform.cli.main", "worker", "--stop-with-parent")
START_REFUSED = 78
"""Exit status of a worker that cannot start as configured (EX_CONFIG of sysexits.h)."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.5, 30.0
MAX_DEATHS_UNSERVED = 3
"""A worker that dies as often before any has served will not do better the next time."""
STABLE_S = 60.0
"""When a worker that ran this long dies, the pauses before the next starts begin at their least."""


class WorkerRefusedStart(Exception):
    """The worker cannot start as configured; it has said why on standard error."""


class WorkerSupervisor:
    """Starts a worker, and starts it again with back-off when it dies.

    The worker reads this process's end of a pipe as standard input: when this process dies,
    however it dies, the pipe ends and so does the worker.
    """

    def __init__(
        self,
        settings: Settings,
        has_served: Callable[[], bool],
        command: tuple[str, ...] = WORKER,
    ) -> None:
        """`has_served` says whether a worker has ever been of use: one that refuses to start after
        that may have good reasons tomorrow, and what it served then is still wanted."""
        self._environment = child_environment(settings)
        self._has_served = has_served
        self._command = command
        self._process: Process | None = None
        self._stopping = False

    async def run(self) -> None:
        """Keep a worker running until `stop`. Raises WorkerRefusedStart if none has served yet."""
        loop = asyncio.get_running_loop()
        backoff_s, num_deaths = MIN_BACKOFF_S, 0
        while not self._stopping:
            started = loop.time()
            status = await self._run_once()
            if self._stopping:
                return
            if status == START_REFUSED and not self._has_served():
                raise WorkerRefusedStart("the worker cannot start; its message stands above")
            num_deaths += 1
            if num_deaths >= MAX_DEATHS_UNSERVED and not self._has_served():
                raise WorkerRefusedStart(
                    f"the worker died {num_deaths} times before it could serve, the last time with "
                    f"status {status}; what it said stands above"
                )
            if loop.time() - started > STABLE_S:
                backoff_s = MIN_BACKOFF_S
            _log.error("the worker died with status %d; starting it again", status)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _run_once(self) -> int:
        """Start a worker and return its exit status. Raises OSError if the first cannot start."""
        try:
            self._process = await self._start()
        except OSError as error:
            if not self._has_served():
                raise
            # The machine may be short of memory for a moment, which may be why the last one died.
            _log.error("a worker could not be started: %s", error)
            return error.errno or 1
        return await self._process.wait()

    async def stop(self, timeout_s: float) -> None:
        """Let the worker drain and end; kill it if that takes longer than `timeout_s`."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            _log.error("the worker did not end within %s s and is killed", timeout_s)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            env=self._environment,
            # Ctrl-C in a terminal goes to the whole process group; the worker must outlive the
            # requests that the gateway drains first.
            start_new_session=True,
        )
