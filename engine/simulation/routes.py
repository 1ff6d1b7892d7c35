"""How an adapter comes to the device, and how much of its copy is hidden behind a prefill."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.config import PrefetchMode
from loraplex.engine.cost_features import Row, StepFeatures
from loraplex.engine.simulation.copies import CopiesInside, CopyLink, Link
from loraplex.engine.simulation.devices import Device

Route = Literal["beside", "inside", "layer-wise", "assisted"]
"""`beside` the steps, and a request waits for all of it, as this engine does; `inside` a step, as
engines do that load on demand; `layer-wise`: a prompt is computed on the layers that have come
while the others are copied; `assisted`: the adapter's part of a prompt is computed on the host
until its layers have come (https://arxiv.org/abs/2401.11240), where the host is fast enough."""


@dataclass(frozen=True, slots=True)
class Copying:
    """How adapters are copied; the first two are settings of the engine."""

    prefetch: PrefetchMode = "queue"
    max_transfer_bytes: int | None = None
    route: Route = "beside"


_NUM_GROUPS = 8
"""Groups of layers that are copied one after the other."""


def make_link(
    route: Route,
    device: Device,
    num_bytes: Callable[[AdapterKey], int],
    prompt_tokens: Callable[[AdapterKey], int],
    clock: Callable[[], float],
) -> Link:
    """`num_bytes` of an adapter; `prompt_tokens` of the request that waits for it, the first."""
    if route == "inside":
        return CopiesInside(device.copy_bytes_per_s, num_bytes, clock)

    def hidden_s(key: AdapterKey) -> float:
        if route == "beside":
            return 0.0
        tokens = min(prompt_tokens(key), device.max_step_tokens)
        prefill_s = (
            device.times.step_ms(StepFeatures.of([Row(tokens, 0, 0.0, is_decode=False)])) / 1e3
        )
        # Two operations for each parameter of two bytes and each token.
        host_s = tokens * num_bytes(key) / device.host_operations_per_s
        if route == "assisted" and host_s <= prefill_s:
            return float("inf")
        return prefill_s * (_NUM_GROUPS - 1) / _NUM_GROUPS

    return CopyLink(device.copy_bytes_per_s, num_bytes, clock, hidden_s)
