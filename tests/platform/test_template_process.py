"""Chat templates of tenants: whatever one does, it ends soon, tells why, and hurts no other."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from loraplex.platform.template_process import (
    MAX_IDLE,
    Template,
    TemplateFailed,
    TemplateLimits,
    TemplateProcesses,
)

MESSAGES = [{"role": "user", "content": "hi"}]
HARMLESS = "{{ bos_token }}{{ messages[0].content }}"
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
async def processes() -> AsyncIterator[TemplateProcesses]:
    pool = TemplateProcesses(TemplateLimits(0.3, 1 << 28, 2))
    yield pool
    await pool.close()


async def render(pool: TemplateProcesses, source: str, owner: str = "acme") -> str:
    return await pool.render(Template(owner, source, {"bos_token": "<s>"}), MESSAGES)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  what it waits for happens in the kernel
            await asyncio.sleep(0)


def pid_of(pool: TemplateProcesses) -> int:
    (process,) = pool._all
    return process.pid


async def test_a_template_renders_as_in_the_gateway(processes: TemplateProcesses) -> None:
    assert await render(processes, HARMLESS) == "<s>hi"
    text = "{{ messages | tojson }}{% generation %}x{% endgeneration %}{{ strftime_now('%Y')[0] }}"
    assert await render(processes, text) == '[{"role": "user", "content": "hi"}]x2'


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (LOOP, "more than 0.3 s of processor time"),
        ("{{ 10 ** (10 ** 9) }}", "processor time|too much memory"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{{ 'a' * 10 ** 10 }}", "too much memory"),
        ("{{ '%1000000000d' % 1 }}", "too much memory"),
        ("{{ 'a' | center(10 ** 10) }}", "too much memory"),
        (
            "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s=n.s*2 %}{% endfor %}",
            "too much memory|processor time",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "too deeply"),
        ("{{ " + "(" * 20_000 + ")" * 20_000 + " }}", "too deeply"),
        ("{{ 'x' * 1000000 }}", "more than 65568 characters"),
        ("{{ '\\ud800' }}", "surrogate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ self._TemplateReference__context.environment }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "Expected an expression"),
    ],
)
async def test_a_template_that_does_harm_is_refused_with_the_reason_and_the_next_one_runs(
    processes: TemplateProcesses, source: str, reason: str
) -> None:
    with pytest.raises(TemplateFailed, match=reason) as refused:
        await render(processes, source)
    assert str(Path(__file__).parents[2]) not in str(refused.value)
    assert await render(processes, HARMLESS) == "<s>hi"


async def test_what_leaves_the_sandbox_finds_nothing_of_the_gateway(
    processes: TemplateProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LORAPLEX_SECRET", "s" * 40)
    held = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(held, 1)
    await render(processes, HARMLESS)
    os.close(held)
    folder = Path(f"/proc/{pid_of(processes)}")
    assert (folder / "environ").read_bytes() == b""
    assert {link.name for link in (folder / "fd").iterdir()} == {"0", "1", "2"}
    limits = (folder / "limits").read_text().splitlines()
    files = next(line.split() for line in limits if line.startswith("Max open files"))
    assert files[3:5] == ["3", "3"]
    assert (folder / "cwd").readlink() == Path("/")


async def test_others_are_served_while_one_tenants_templates_hang(
    processes: TemplateProcesses,
) -> None:
    hanging = [asyncio.create_task(render(processes, LOOP, "evil")) for _ in range(20)]
    await asyncio.gather(*(render(processes, HARMLESS, f"tenant{i}") for i in range(12)))
    assert sum(task.done() for task in hanging) < 10
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    assert await render(processes, HARMLESS) == "<s>hi"
    assert processes._owners == {}


async def test_a_process_that_was_killed_while_it_was_idle_is_replaced(
    processes: TemplateProcesses,
) -> None:
    await render(processes, HARMLESS)
    before = pid_of(processes)
    os.kill(before, signal.SIGKILL)
    assert await render(processes, HARMLESS) == "<s>hi"
    assert pid_of(processes) != before


async def test_a_process_that_is_killed_while_it_works_is_replaced_and_the_work_done() -> None:
    pool = TemplateProcesses(TemplateLimits(60.0, 1 << 28, 1))
    try:
        await render(pool, HARMLESS)
        before = pid_of(pool)
        busy = asyncio.create_task(render(pool, LOOP))
        await until(lambda: not pool._idle)
        os.kill(before, signal.SIGKILL)
        await until(lambda: [process.pid for process in pool._all] not in ([], [before]))
        assert not busy.done()
        os.kill(pid_of(pool), signal.SIGKILL)
        with pytest.raises(TemplateFailed, match="ended twice"):
            await busy
        assert await render(pool, HARMLESS) == "<s>hi"
    finally:
        await pool.close()


async def test_whoever_gives_up_leaves_no_answer_for_the_next(
    processes: TemplateProcesses,
) -> None:
    waiting = asyncio.create_task(render(processes, LOOP))
    await until(lambda: processes._all)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await render(processes, HARMLESS) == "<s>hi"


async def test_a_process_serves_no_other_tenant(processes: TemplateProcesses) -> None:
    await render(processes, HARMLESS, "acme")
    first = pid_of(processes)
    await render(processes, HARMLESS, "globex")
    assert {process.pid for process in processes._all} > {first}
    await render(processes, HARMLESS, "acme")
    assert processes._idle["acme"].pid == first
    assert processes._idle["globex"].pid != first


async def test_few_processes_wait_for_their_tenants(processes: TemplateProcesses) -> None:
    for i in range(MAX_IDLE + 2):
        await render(processes, HARMLESS, f"tenant{i}")
    assert list(processes._idle) == [f"tenant{i}" for i in range(2, MAX_IDLE + 2)]
    assert len(processes._all) == MAX_IDLE


@pytest.mark.parametrize("answer", [b"\xff\xff\xff\xff", b"\x02\0\0\0[]", b"\x01\0\0\0{"])
async def test_a_process_whose_answer_is_none_is_ended_before_it_is_read(
    processes: TemplateProcesses,
    answer: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = tmp_path / "out_of_the_sandbox.py"
    program.write_text(
        f"import sys; sys.stdout.buffer.write({answer!r}); sys.stdout.flush()\ninput()"
    )
    monkeypatch.setattr("loraplex.platform.template_process.PROGRAM", program)
    with pytest.raises(TemplateFailed, match="no answer"):
        await render(processes, HARMLESS)
    assert not processes._all


async def test_processes_end_with_the_pool(processes: TemplateProcesses) -> None:
    await render(processes, HARMLESS)
    pid = pid_of(processes)
    await processes.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
