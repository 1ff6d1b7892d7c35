"""Runs chat templates of tenants' adapters in processes of their own, bounded in every respect."""

import asyncio
import json
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loraplex.platform import template_environment

_log = logging.getLogger(__name__)

PROGRAM = Path(template_environment.__file__)
MAX_SOURCE_CHARS = 256 * 1024
WALL_FACTOR = 20.0
"""A process that has not answered after so many times its processor time is ended."""
START_S = 60.0
"""Time that a new process gets besides, to load what it needs."""
END_S = 5.0
"""Time that a process gets to end once it has closed its pipes."""
MIN_MAX_CHARS = 64 * 1024
GROWTH = 16
"""A conversation may grow this many times when it is rendered, beyond what any may have."""
MAX_CHAR_BYTES = 12
"""Of a character in an answer: JSON writes those beyond 16 bits as two escapes."""
MAX_IDLE = 8
"""Processes that are kept for the next template of their owners."""


class TemplateFailed(Exception):
    """A template gave no text; the message is the reason, for whoever wrote the template."""


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """What a template may use for one conversation, and how many processes there are."""

    timeout_s: float
    """Of processor time."""
    memory_bytes: int
    num_processes: int


@dataclass(frozen=True, slots=True)
class Template:
    """A template that a tenant brought."""

    owner: str
    """Whose it is: one of an owner's templates runs at a time."""
    source: str
    special_tokens: Mapping[str, str]


class TemplateProcesses:
    """A small pool; processes start when they are needed, and are replaced when they end.

    What is in a process: jinja2, one owner's templates and the conversation at hand. It has an
    empty environment, no open file but its two pipes, and can open none. It never serves another
    owner: a template that got out of the sandbox could keep what it sees for its next answer.
    """

    def __init__(self, limits: TemplateLimits) -> None:
        self._limits = limits
        self._free = asyncio.Semaphore(limits.num_processes)
        self._idle: OrderedDict[str, Process] = OrderedDict()
        """By owner, used last at the end."""
        self._owners: dict[str, _Owner] = {}
        self._all: set[Process] = set()

    async def render(self, template: Template, messages: list[dict[str, str]]) -> str:
        """The text of a conversation, up to where the assistant answers.

        Raises:
            TemplateFailed: the template refused it, or took more than it may.
        """
        asked = _asked(self._limits, template, messages)
        owner = template.owner
        async with self._turn_of(owner):
            reply = await self._reply(owner, asked) or await self._reply(owner, asked)
        if reply is None:
            raise TemplateFailed("its process was ended twice")
        if reply.refused is not None:
            raise TemplateFailed(reply.refused)
        return reply.text

    async def close(self) -> None:
        """End all processes."""
        for process in list(self._all):
            await self._end(process)
        self._idle.clear()

    async def _reply(self, owner: str, asked: "_Asked") -> "_Reply | None":
        """What a process answers; None if it was ended meanwhile, by nobody here."""
        async with self._free:
            process = await self._take(owner)
            try:
                reply = await self._exchange(process, asked)
            except (asyncio.IncompleteReadError, BrokenPipeError, ConnectionResetError):
                status = await self._status_of(process)
                if status != -signal.SIGPROF:
                    _log.warning("a template's process ended with status %d", status)
                    return None
                reply = _Reply(refused=_too_long(self._limits))
            except ValueError:
                await self._end(process)
                _log.warning("a template's process gave what is no answer")
                raise TemplateFailed("its process gave what is no answer") from None
            except TimeoutError:
                await self._end(process)
                raise TemplateFailed(_too_long(self._limits)) from None
            except BaseException:
                await self._end(process)  # its next answer would be to this conversation
                raise
            if reply.spent is not None:
                await self._end(process)
            if process in self._all:
                self._idle[owner] = process
            while len(self._idle) > MAX_IDLE:
                await self._end(self._idle.popitem(last=False)[1])
        return reply

    async def _exchange(self, process: Process, asked: "_Asked") -> "_Reply":
        """Raises ValueError for what no template's process writes while it is sound."""
        assert process.stdin is not None
        assert process.stdout is not None
        async with asyncio.timeout(START_S + WALL_FACTOR * self._limits.timeout_s):
            process.stdin.write(asked.frame)
            await process.stdin.drain()
            length = int.from_bytes(await process.stdout.readexactly(4), "little")
            if length > asked.max_reply_bytes:
                raise ValueError(f"an answer of {length} bytes")
            return msgspec.json.decode(await process.stdout.readexactly(length), type=_Reply)

    @asynccontextmanager
    async def _turn_of(self, owner: str) -> AsyncIterator[None]:
        """Let one template of an owner run at a time, so that nobody can take all processes."""
        entry = self._owners.setdefault(owner, _Owner(asyncio.Lock()))
        entry.num_waiting += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.num_waiting -= 1
            if not entry.num_waiting:
                self._owners.pop(owner, None)

    async def _take(self, owner: str) -> Process:
        """One that lives: the owner's idle one, or a new one."""
        process = self._idle.pop(owner, None)
        if process is not None:
            if process.returncode is None:
                return process
            await self._end(process)
        return await self._start()

    async def _start(self) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(PROGRAM),
            str(self._limits.memory_bytes),
            stdin=PIPE,
            stdout=PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            close_fds=True,
            start_new_session=True,  # the terminal's signals are for the gateway
        )
        self._all.add(process)
        return process

    async def _status_of(self, process: Process) -> int:
        """Status of a process that has closed its pipes, which ends by itself as a rule. Python
        takes the status of a dead process away from us when we send it a signal."""
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()
        return await self._end(process)

    async def _end(self, process: Process) -> int:
        """Kill it, if need be; return its status, negative for a signal."""
        self._all.discard(process)
        if process.returncode is None:
            process.kill()
        return await process.wait()


@dataclass(slots=True)
class _Owner:
    lock: asyncio.Lock
    num_waiting: int = 0


@dataclass(frozen=True, slots=True)
class _Asked:
    frame: bytes
    max_reply_bytes: int


class _Reply(msgspec.Struct, frozen=True):
    text: str = ""
    refused: str | None = None
    spent: str | None = None


def _asked(limits: TemplateLimits, template: Template, messages: list[dict[str, str]]) -> _Asked:
    num_chars = sum(len(message["content"]) for message in messages)
    max_chars = MIN_MAX_CHARS + GROWTH * num_chars
    asked = {
        "source": template.source,
        "special_tokens": dict(template.special_tokens),
        "messages": messages,
        "timeout_s": limits.timeout_s,
        "max_chars": max_chars,
    }
    body = json.dumps(asked).encode()
    # What stands around the text is less than the shortest text may have.
    max_reply_bytes = MAX_CHAR_BYTES * (max_chars + MIN_MAX_CHARS)
    return _Asked(len(body).to_bytes(4, "little") + body, max_reply_bytes)


def _too_long(limits: TemplateLimits) -> str:
    return f"it takes more than {limits.timeout_s:g} s of processor time"
