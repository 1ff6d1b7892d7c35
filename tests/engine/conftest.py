"""Who computes adapters on a CPU: torch, and the compiled kernel."""

import pytest

from loraplex.kernels.lora_cpu import CpuLora, compile_lora


@pytest.fixture(scope="session")
def compiled_lora(tmp_path_factory: pytest.TempPathFactory) -> CpuLora:
    compiled = compile_lora(tmp_path_factory.mktemp("compiled") / "kernels")
    assert compiled is not None, "the tests need a C++ compiler"
    return compiled


@pytest.fixture(params=["torch", "compiled"])
def cpu_lora(request: pytest.FixtureRequest) -> CpuLora | None:
    if request.param == "torch":
        return None
    found: CpuLora = request.getfixturevalue("compiled_lora")
    return found
