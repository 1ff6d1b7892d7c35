"""Small loads and devices."""

from loraplex.engine.simulation.devices import Device, LinearTimes
from loraplex.engine.simulation.experiment import Setup
from loraplex.engine.simulation.traces import TraceRequest
from loraplex.engine.simulation.workload import Requests


def device(**changes: object) -> Device:
    values: dict[str, object] = {
        "name": "toy",
        "times": LinearTimes(10.0, 2.0, 0.1, 0.001),
        "kv_tokens": 512,
        "max_step_tokens": 64,
        "max_running": 8,
        "bytes_per_rank": 1000,
        "copy_bytes_per_s": 1e6,
    }
    return Device(**(values | changes))  # type: ignore[arg-type]  # values of several types


def requests(count: int, gap_s: float = 0.02, tenants: int = 3, adapters: int = 0) -> Requests:
    return tuple(
        TraceRequest(
            arrival_s=i * gap_s,
            tenant=f"t{i % tenants}",
            prompt_tokens=5 + 7 * i % 40,
            output_tokens=1 + 11 * i % 30,
            adapter=f"a{i % adapters}" if adapters else None,
            rank=8 if adapters else 0,
        )
        for i in range(count)
    )


def setup(load: Requests, **changes: object) -> Setup:
    return Setup(device(), load, **changes)  # type: ignore[arg-type]  # values of several types
