"""A step on its way through a GPU."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from loraplex.engine.batch import StepBatch
from loraplex.engine.plan import StepOutput
from loraplex.engine.sampler import Draw, read
from loraplex.kernels.staging import host_tensor

_NOT_FINITE = "the model computed numbers that are not finite"


@dataclass(frozen=True, slots=True)
class Launched:
    """What is queued on the device. It holds the batch, whose adapters' memory is in use."""

    batch: StepBatch
    drawn: Draw
    """On the host once `done`, and not before."""
    done: torch.cuda.Event

    @classmethod
    def of(cls, batch: StepBatch, drawn: Draw) -> "Launched":
        """Queue copies to pinned memory behind what draws; waits for nothing."""
        on_host = drawn.moved(_to_pinned)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types here
        done.record()
        return cls(batch, on_host, done)

    def output(self) -> StepOutput:
        """Wait for the device, and return what it drew."""
        self.done.synchronize()
        return step_output(self.batch, self.drawn)


def step_output(batch: StepBatch, drawn: Draw) -> StepOutput:
    """What was drawn, in the order of the plan. Waits for it, where it is on a device."""
    sampled = read(drawn, batch.sampling)
    token_ids = np.empty_like(sampled.token_ids)
    token_ids[batch.places] = sampled.token_ids
    keys, places = batch.sampled_keys, batch.places
    return StepOutput(
        token_ids,
        {keys[places[row]]: _NOT_FINITE for row in sampled.failed},
        {keys[places[row]]: found for row, found in sampled.logprobs.items()},
    )


def _to_pinned(tensor: Tensor) -> Tensor:
    host = host_tensor(tensor.numel(), tensor.dtype, tensor.device).view(tensor.shape)
    return host.copy_(tensor, non_blocking=True)
