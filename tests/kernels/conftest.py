"""Kernels as other processors have them."""

import os
from pathlib import Path

import pytest

from loraplex.kernels.cpu_kernels import CpuKernels, compile_kernels


@pytest.fixture(scope="session")
def wide_kernels() -> CpuKernels:
    """As on processors with vectors of 16 floats."""
    folder = Path(os.environ["LORAPLEX_KERNELS_DIR"])
    compiled = compile_kernels(folder, ("-DLORAPLEX_LANES=16",))
    assert compiled is not None, "the tests need a C++ compiler"
    return compiled


@pytest.fixture(params=["compiled_kernels", "wide_kernels"])
def any_kernels(request: pytest.FixtureRequest) -> CpuKernels:
    """As on this machine, and with wide vectors."""
    found: CpuKernels = request.getfixturevalue(request.param)
    return found
