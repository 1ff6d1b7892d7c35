"""The worker's side of the process that computes adapters with PEFT."""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from pathlib import Path

import msgspec

from loraplex.engine import memory
from loraplex.engine.self_test.comparison import ServedTokens
from loraplex.engine.self_test.peft_messages import Check, CheckAnswer, Checked, CheckFailed

_log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "loraplex.engine.self_test.peft_process")
HOST_SHARE = 0.5
"""Of the host's free memory: KV cache and adapters were given half of it at most, and may not have
written to it yet."""
LIBRARIES_BYTES = 1024 * memory.MIB
"""What the process takes without a model: 0.6 GiB with torch's CPU build, and some to spare."""
MODEL_FACTOR = 1.5
"""While a model is read, parts of it are in memory twice."""
MAX_ANSWER_BYTES = 16 * memory.MIB
TIMEOUT_S = 45.0
"""Of one check, the start of the process included; then the process is killed. So long at most a
tenant's adapter, which may bring regular expressions that never end, keeps others waiting."""
IDLE_S = 300.0


class OracleUnavailable(Exception):
    """PEFT could not be asked, which says nothing about the adapter; the message has the reason."""


@dataclass(frozen=True, slots=True)
class PeftSubject:
    """What the process computes."""

    model_folder: Path
    dtype: str
    model_bytes: int
    threads: int


class PeftOracle:
    """Starts the process when it is first asked and ends it when nobody asked for a while.

    Belongs to one event loop; one question at a time.
    """

    def __init__(
        self,
        subject: PeftSubject,
        free_bytes: Callable[[], int] = memory.free_host_bytes,
        command: Sequence[str] = COMMAND,
        timeout_s: float = TIMEOUT_S,
        idle_s: float = IDLE_S,
    ) -> None:
        """`free_bytes` tells how much of the host's memory may still be taken."""
        self._subject = subject
        self._free_bytes = free_bytes
        self._command = command
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._process: Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    @property
    def process(self) -> Process | None:
        """The process, while there is one."""
        return self._process

    async def judge(
        self, folder: Path, served: Sequence[ServedTokens], vocab_size: int | None = None
    ) -> Checked:
        """What PEFT says of drawn tokens; `vocab_size` is that of an adapter that adds tokens.

        Raises OracleUnavailable.
        """
        drawn = tuple((each.prompt.ids, each.tokens) for each in served)
        check = Check(str(folder), drawn, vocab_size)
        if self._idle is not None:
            self._idle.cancel()
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._exchange(await self._running(), check)
        except TimeoutError:
            await self.close()
            raise OracleUnavailable(f"it took longer than {self._timeout_s:g} s") from None
        except asyncio.CancelledError:
            self._kill()  # its answer would be taken for the next one's
            raise
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            await self.close()
            raise OracleUnavailable(
                f"its process failed: {error or type(error).__name__}"
            ) from error
        self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._kill)
        if isinstance(answer, CheckFailed):
            raise OracleUnavailable(answer.message)
        return answer

    async def close(self) -> None:
        """End the process, if there is one."""
        process = self._process
        self._kill()
        if process is not None:
            await process.wait()

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            self._require_room()
            self._process = await self._start()
        return self._process

    def _require_room(self) -> None:
        if find_spec("peft") is None:
            raise OracleUnavailable("peft is not installed; it comes with loraplex[worker]")
        needed = int(self._subject.model_bytes * MODEL_FACTOR) + LIBRARIES_BYTES
        free = int(self._free_bytes() * HOST_SHARE)
        if needed > free:
            raise OracleUnavailable(
                f"it would take {needed // memory.MIB} MiB of the host's memory, and "
                f"{free // memory.MIB} MiB may be taken"
            )

    async def _start(self) -> Process:
        subject = self._subject
        # The deadline is this process's to keep, and it may die before that.
        cpu_s = ceil(self._timeout_s) * subject.threads
        arguments = (
            *(str(subject.model_folder), subject.dtype),
            *(str(subject.threads), str(cpu_s)),
        )
        _log.info("starting a process that tests adapters with PEFT")
        return await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdin=PIPE,
            stdout=PIPE,
            limit=MAX_ANSWER_BYTES,
            env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        )

    async def _exchange(self, process: Process, check: Check) -> CheckAnswer:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(check) + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            raise ValueError(f"it ended with status {await process.wait()}")
        return msgspec.json.decode(line, type=CheckAnswer)

    def _kill(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
