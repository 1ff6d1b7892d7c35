"""Who computes on a CPU: torch, and the compiled kernels."""

import pytest

from loraplex.kernels.cpu_kernels import CpuKernels


@pytest.fixture(params=["torch", "compiled"])
def kernels(request: pytest.FixtureRequest) -> CpuKernels | None:
    if request.param == "torch":
        return None
    found: CpuKernels = request.getfixturevalue("compiled_kernels")
    return found
