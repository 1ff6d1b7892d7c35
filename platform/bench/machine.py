"""What a measurement ran on; a number without it means nothing."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from loraplex.engine.model import LoadedModel


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware and software of one run."""

    cpu: str
    cores: int
    """Those that this process may run on."""
    threads: int
    """Of torch's arithmetic."""
    device: str
    torch: str
    python: str
    dtype: str

    def __str__(self) -> str:
        where = self.cpu if self.device == "cpu" else f"{self.device}, {self.cpu}"
        return (
            f"{where}, cores: {self.cores}, threads: {self.threads}, torch {self.torch}, "
            f"{self.dtype}, Python {self.python}"
        )


def describe_machine(model: LoadedModel) -> Machine:
    """Describe this machine and how the model is computed on it."""
    on_gpu = model.device.type == "cuda"
    return Machine(
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name() if on_gpu else "cpu",
        torch=torch.__version__,
        python=platform.python_version(),
        dtype=str(model.dtype).removeprefix("torch."),
    )


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name of the processor, with family and model where the name alone says little."""
    fields: dict[str, str] = {}
    for line in cpuinfo.read_text().splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    if "model name" not in fields:
        return platform.machine()
    numbers = [f"{key} {fields[key]}" for key in ("cpu family", "model") if key in fields]
    return f"{fields['model name']} ({', '.join(numbers)})" if numbers else fields["model name"]
