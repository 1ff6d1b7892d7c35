"""What a machine can do at best: nothing is faster than its bytes and its arithmetic."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Self

import torch
from torch import Tensor

_LEAST_BYTES = 256 << 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_GEMM_SIDE = 1024
_SMALL_SIDE = 256
_SLOW_FLOPS_PER_S = 5e9
"""A dtype whose products are slower has no hardware here, and smaller ones tell that too."""
_TRIES = 3

Clock = Callable[[], float]
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Work:
    """What nobody can leave out."""

    num_bytes: int
    """That are read or written, each once."""
    flops: int
    """A product and a sum are two."""

    def floor_ms(self, bytes_per_s: float, flops_per_s: float) -> float:
        """The longer of moving and computing, both as fast as the machine can."""
        return max(self.num_bytes / bytes_per_s, self.flops / flops_per_s) * 1e3


@dataclass(frozen=True, slots=True)
class Floors:
    """The best of all times that were taken in a run."""

    read_gb_per_s: float
    """Of a sum over an array far larger than the caches."""
    copy_gb_per_s: float
    """Read and written together."""
    gemm_gflop_per_s: Mapping[str, float]
    """Of 1024 × 1024 × 1024, or of 256³ where a dtype has no hardware, by dtype."""

    def better(self, other: Self) -> Self:
        """The best of both."""
        gemm = self.gemm_gflop_per_s
        return type(self)(
            max(self.read_gb_per_s, other.read_gb_per_s),
            max(self.copy_gb_per_s, other.copy_gb_per_s),
            {name: max(rate, other.gemm_gflop_per_s.get(name, 0.0)) for name, rate in gemm.items()},
        )

    def bytes_ms(self, work: Work) -> float:
        """Milliseconds that the bytes of ``work`` take at least."""
        return work.num_bytes / self.read_gb_per_s / 1e6

    def flops_ms(self, work: Work) -> float:
        """Milliseconds that its arithmetic takes at least, in whichever dtype is the fastest:
        bfloat16 can be widened, and float32 is what sums run in."""
        return work.flops / max(self.gemm_gflop_per_s.values()) / 1e6


class FloorProbe:
    """Measures again and again, each as the best of some tries; keeps its arrays between."""

    def __init__(
        self,
        dtypes: Collection[torch.dtype],
        device: torch.device | None = None,
        clock: Clock = perf_counter,
    ) -> None:
        self._device, self._clock = device or torch.device("cpu"), clock
        num_floats = max(_LEAST_BYTES, 4 * _largest_cache_bytes()) // 4
        self._array = torch.ones(num_floats, device=self._device)
        self._squares = {dtype: self._square(dtype) for dtype in dtypes}

    def measure(self) -> Floors:
        """Return what is measured now."""
        rates = self.flops_per_s()
        return Floors(
            read_gb_per_s=self.read_bytes_per_s() / 1e9,
            copy_gb_per_s=self.copied_bytes_per_s() / 1e9,
            gemm_gflop_per_s={
                str(dtype).removeprefix("torch."): rate / 1e9 for dtype, rate in rates.items()
            },
        )

    def read_bytes_per_s(self) -> float:
        """Of a sum over a large array."""
        return self._array.nbytes / self.least_s(self._array.sum)

    def copied_bytes_per_s(self) -> float:
        """Read and written together."""
        target = torch.empty_like(self._array)
        return 2 * self._array.nbytes / self.least_s(partial(target.copy_, self._array))

    def flops_per_s(self) -> dict[torch.dtype, float]:
        """Of torch's product of large matrices, by dtype."""
        return {dtype: self._rate(square) for dtype, square in self._squares.items()}

    def least_s(self, compute: Callable[[], object]) -> float:
        """Return the seconds of the fastest of some tries."""
        taken_s: list[float] = []
        for _ in range(_TRIES):
            started = self._clock()
            compute()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            taken_s.append(self._clock() - started)
        return min(taken_s)

    def _square(self, dtype: torch.dtype) -> Tensor:
        square = torch.randn(_GEMM_SIDE, _GEMM_SIDE, device=self._device).to(dtype)
        small = square[:_SMALL_SIDE, :_SMALL_SIDE].contiguous()
        return small if self._rate(small) < _SLOW_FLOPS_PER_S else square

    def _rate(self, square: Tensor) -> float:
        flops: int = 2 * square.shape[0] ** 3
        return flops / self.least_s(partial(torch.mm, square, square))


def _largest_cache_bytes() -> int:
    sizes = [path.read_text().strip() for path in _CACHES.glob("index*/size")]
    return max((int(size[:-1]) << 10 for size in sizes if size.endswith("K")), default=0)
