"""Calls that take long give up the interpreter's lock, so that other threads run; others do not."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kernels.attention_cases import PLAIN, make_step
from tests.kernels.lora_cases import make_batch, make_segment
from tests.kernels.test_lora_cpu import located

from loraplex.kernels.attention_cpu import CpuAttention
from loraplex.kernels.compiled import Build, Function, Library, find_compiler
from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.kernels.elementwise import Activation, CpuElementwise, Norm
from loraplex.kernels.linear_cpu import CpuLinear
from loraplex.kernels.lora import add_lora
from loraplex.kernels.lora_cpu import CpuLora


class Watched:
    """Notes which way each call goes."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.numbers = library.numbers
        self.check_struct_bytes = library.check_struct_bytes
        self.ways: list[str] = []

    def bind(self, name: str, *argtypes: Any) -> Function:
        function = self._library.bind(name, *argtypes)

        def watched(way: str, call: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *arguments: (self.ways.append(way), call(*arguments))

        return Function(watched("short", function.short), watched("long", function.long))


def dense(library: Any, size: int) -> None:
    kernel = CpuLinear(library)
    kernel.pack([torch.ones(64 * size, 256)]).apply(torch.ones(64, 256), None)


def attention(library: Any, size: int) -> None:
    make_step([(0, 32 * size)], heads=(4, 2), dims=(32, 32)).attend(PLAIN, CpuAttention(library))


def decodes(library: Any, size: int) -> None:
    batch = [(512, 1)] * size
    make_step(batch, heads=(8, 4), dims=(64, 64)).attend(PLAIN, CpuAttention(library))


def lora(library: Any, size: int) -> None:
    widths = (1024, 1024)
    y, x = make_batch(16 * size, torch.float32, widths=widths)
    segment = make_segment(0, 16 * size, 32, torch.float32, widths=widths)
    add_lora(y, x, located(CpuLora(library), [segment], widths))


def elementwise(library: Any, size: int) -> None:
    ops, x = CpuElementwise(library), torch.ones(32 * size, 2048)
    norm = Norm(torch.ones(2048), 1e-5, rounds_first=True)
    ops.rms_norm(x, norm)
    ops.add_norm(x, x, after=norm)
    ops.gated(x, x, Activation.SILU)
    table = torch.ones(32 * size, 64)
    ops.rotary(x.clone().view(-1, 32, 64), x.clone().view(-1, 32, 64), table, table)


CALLS: Mapping[str, tuple[str, Callable[[Any, int], None]]] = {
    "dense": ("linear", dense),
    "attention": ("attention", attention),
    "decodes": ("attention", decodes),
    "lora": ("lora", lora),
    "elementwise": ("elementwise", elementwise),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("size", "way"), [(1, "short"), (40, "long")])
@pytest.mark.usefixtures("compiled_kernels")
def test_calls_that_take_long_give_up_the_lock_and_others_keep_it(
    name: str, size: int, way: str
) -> None:
    source, call = CALLS[name]
    compiler = find_compiler()
    assert compiler is not None
    build = Build.of(Path(os.environ["LORAPLEX_KERNELS_DIR"]), compiler)
    library: Watched = build.load(source, Watched)
    call(library, size)
    assert set(library.ways) == {way}


@pytest.fixture
def only_given_up() -> Iterator[None]:
    """The interpreter takes its lock from no thread that keeps it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("only_given_up")
def test_another_thread_runs_during_a_long_call(compiled_kernels: CpuKernels) -> None:
    packed = compiled_kernels.linear.pack([torch.ones(2048, 512)])
    x, out = torch.ones(64, 512), torch.empty(64, 2048)
    begins, has_run = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: begins.wait() and has_run.set())
    other.start()
    begins.set()
    calls = 0
    while not has_run.is_set() and calls < 1000:
        packed.apply(x, None, out)
        calls += 1
    ran_meanwhile = has_run.is_set()
    other.join()
    assert ran_meanwhile


def test_threads_that_attend_at_once_do_not_touch_each_other(
    compiled_kernels: CpuKernels,
) -> None:
    steps = [make_step([(0, 700)], heads=(4, 2), dims=(32, 32)) for _ in range(2)]
    alone = [step.attend(PLAIN, compiled_kernels.attention) for step in steps]
    found: list[list[torch.Tensor]] = [[], []]

    def attend(number: int) -> None:
        for _ in range(5):
            found[number].append(steps[number].attend(PLAIN, compiled_kernels.attention))

    threads = [threading.Thread(target=attend, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outputs, expected in zip(found, alone, strict=True):
        assert len(outputs) == 5
        assert all(torch.equal(each, expected) for each in outputs)
