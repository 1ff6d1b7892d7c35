"""The processes of a worker that compute adapters' parts of prompts on the host."""

import os

from loraplex.engine.assist.host_assist import HostAssist
from loraplex.engine.assist.watch import Watch
from loraplex.engine.errors import TooFewCores
from loraplex.engine.model import LoadedModel
from loraplex.platform.settings import Settings, available_cores

MAX_BY_DEFAULT = 8
_SHARE_OF_CORES = 4
START_WAIT_S = 5.0
"""Time that a worker waits for them at its start, so that they do not disturb what it measures
then."""


def num_assistants(settings: Settings, device: str) -> int:
    """How many there are: `cpu` copies adapters faster than any help comes, unless it is slowed."""
    if settings.assist_processes is not None:
        return settings.assist_processes
    cores = available_cores()
    if cores == 1 or (device == "cpu" and settings.adapter_copy_bytes_per_s is None):
        return 0
    return min(MAX_BY_DEFAULT, max(1, cores // _SHARE_OF_CORES))


def num_threads(settings: Settings, device: str) -> int:
    """Cores that are left for the arithmetic of the worker itself, one at least."""
    num_bound = num_assistants(settings, device) if device == "cpu" else 0
    return max(1, available_cores() - max(1, num_bound))


def start_assist(settings: Settings, model: LoadedModel) -> HostAssist | None:
    """Start them on the highest cores, and wait for them for a while; None if there are to be none.

    Raises:
        TooFewCores: each has to have a core of its own, and the worker's threads another.
    """
    num = num_assistants(settings, model.config.device)
    if not num:
        return None
    cores = sorted(os.sched_getaffinity(0))
    if num >= len(cores):
        raise TooFewCores(
            f"LORAPLEX_ASSIST_PROCESSES={num}, each of which is bound to a core, but this process "
            f"may run on {len(cores)}; set it to {len(cores) - 1} or less: "
            "one core at least is the worker's own"
        )
    assist = HostAssist(model.shapes.linears, Watch(cores[-num:]))
    assist.watch.wait_ready(START_WAIT_S)
    return assist
