"""What a measurement ran on; a number without it means nothing."""

import os
import platform
from dataclasses import dataclass

import torch

from loraplex.engine.model import LoadedModel
from loraplex.platform.processor import cpu_name


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
    load_average: float
    """Of the minute before the run; anything far above 0 means that others were at work."""

    def __str__(self) -> str:
        where = self.cpu if self.device == "cpu" else f"{self.device}, {self.cpu}"
        return (
            f"{where}, cores: {self.cores}, threads: {self.threads}, torch {self.torch}, "
            f"{self.dtype}, Python {self.python}, load average before {self.load_average:.1f}"
        )


def describe_machine(model: LoadedModel, load_average: float) -> Machine:
    """Describe this machine and how the model is computed on it; the load is that of before."""
    on_gpu = model.device.type == "cuda"
    device = torch.cuda.get_device_name() if on_gpu else "cpu"
    return this_machine(device, str(model.dtype).removeprefix("torch."), load_average)


def this_machine(device: str, dtype: str, load_average: float) -> Machine:
    """Describe this machine; the load is that of before."""
    return Machine(
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        device=device,
        torch=torch.__version__,
        python=platform.python_version(),
        dtype=dtype,
        load_average=load_average,
    )
