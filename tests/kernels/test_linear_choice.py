"""Who computes dense layers is measured, and rows that depend on nothing win ties."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.kernels.linear import PackedWeight, Packer, TorchPacker
from loraplex.kernels.linear_choice import Contender, best, candidates, fastest, preferred

CPU = torch.device("cpu")


class SlowWeight:
    """Computes everything many times."""

    def __init__(self, weight: PackedWeight) -> None:
        self._weight = weight
        self.widths = weight.widths
        self.unpack = weight.unpack

    def apply(self, x: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
        for _ in range(30):
            y = self._weight.apply(x, bias, out)
        return y


class SlowPacker:
    name = "slow"

    def pack(self, weights: Sequence[Tensor]) -> SlowWeight:
        return SlowWeight(TorchPacker().pack(weights))


def timed(name: str, *times_ms: float) -> Contender:
    packer = TorchPacker()
    packer.name = name
    return Contender(packer, (), dict(zip((1, 4, 16, 64), times_ms, strict=False)))


@pytest.mark.parametrize(
    ("contenders", "winner"),
    [
        ((timed("ours", 10, 10, 10, 10), timed("b", 9.7, 9.7, 9.7, 9.7)), "ours"),
        ((timed("ours", 10, 10, 10, 10), timed("b", 9, 9, 9, 9)), "b"),
        ((timed("ours", 10, 10, 10, 10), timed("b", 1, 14, 14, 14)), "b"),
        ((timed("ours", 10, 10, 10, 10), timed("b", 1)), "ours"),
        ((timed("ours", 10), timed("b", 1, 2), timed("c", 1, 1)), "c"),
        ((timed("ours", 10), timed("b", 1)), "b"),
        ((timed("ours", 0, 10), timed("b", 0, 10)), "ours"),
    ],
)
def test_the_first_wins_unless_another_that_came_to_the_end_is_clearly_faster(
    contenders: Sequence[Contender], winner: str
) -> None:
    assert best(contenders).name == winner


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_who_takes_much_longer_loses(
    order: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    packers: tuple[Packer, ...] = (SlowPacker(), TorchPacker())
    weights = [torch.randn(64, 64), torch.randn(100_000, 64)]
    assert fastest([packers[place] for place in order], weights) is packers[1]
    assert "dense layers are computed by torch (ms by rows: " in caplog.text


def test_one_alone_is_not_measured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    packer = TorchPacker()
    assert fastest([packer], [torch.ones(4, 4)]) is packer
    assert not caplog.text


def test_without_weights_the_first_is_taken_and_nothing_is_measured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    packers = (SlowPacker(), TorchPacker())
    assert fastest(packers, []) is packers[0]
    assert not caplog.text


class OtherThreadsWeight(SlowWeight):
    """Computes on another thread, as OpenMP does, and adds up the time of that."""

    took_ms = 0.0

    def apply(self, x: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
        with ThreadPoolExecutor() as pool:
            return pool.submit(self._timed, x, bias, out).result()

    def _timed(self, x: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        start = time.thread_time()
        y = super().apply(x, bias, out)
        self.took_ms += (time.thread_time() - start) * 1e3
        return y


def test_what_other_threads_take_counts() -> None:
    weight = OtherThreadsWeight(TorchPacker().pack([torch.randn(4000, 400)]))
    contender = Contender(TorchPacker(), [weight])
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    contender.run(1, [torch.randn(1, 400)])
    torch.set_num_threads(num_threads)
    assert contender.times_ms[1] >= weight.took_ms > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_our_own_is_preferred_where_it_knows_the_dtype(
    dtype: torch.dtype, compiled_kernels: CpuKernels
) -> None:
    assert preferred(candidates(dtype, CPU, compiled_kernels), []) is compiled_kernels.linear
    assert isinstance(candidates(dtype, CPU, compiled_kernels)[-1], TorchPacker)
    assert compiled_kernels.linear not in candidates(torch.float16, CPU, compiled_kernels)
    assert compiled_kernels.linear not in candidates(dtype, CPU, None)


def test_a_gpu_keeps_weights_as_torch_has_them(compiled_kernels: CpuKernels) -> None:
    (packer,) = candidates(torch.float32, torch.device("cuda"), compiled_kernels)
    assert isinstance(packer, TorchPacker)
