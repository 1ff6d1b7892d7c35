"""A step on its way through a GPU, and what became of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from loraplex.engine.batch import StepBatch
from loraplex.engine.plan import ColdOutput, StepOutput
from loraplex.engine.sampler import Draw, read
from loraplex.kernels.staging import host_tensor

_NOT_FINITE = "the model computed numbers that are not finite"


class PassDraw(NamedTuple):
    """What became of a pass in one step."""

    key: str
    """`Request.key`."""
    output: ColdOutput
    batch: StepBatch
    drawn: Draw | None
    """None while it is not done."""

    def moved(self) -> "PassDraw":
        """The same, to be copied to pinned memory."""
        return self._replace(drawn=self.drawn and self.drawn.moved(_to_pinned))


@dataclass(frozen=True, slots=True)
class Launched:
    """What is queued on the device. It holds the batches, whose adapters' memory is in use."""

    batch: StepBatch
    drawn: Draw
    """On the host once `done`, and not before."""
    passes: Sequence[PassDraw]
    """Likewise."""
    done: torch.cuda.Event

    @classmethod
    def of(cls, batch: StepBatch, drawn: Draw, passes: Sequence[PassDraw]) -> "Launched":
        """Queue copies to pinned memory behind what draws; waits for nothing."""
        on_host, of_passes = drawn.moved(_to_pinned), [each.moved() for each in passes]
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types here
        done.record()
        return cls(batch, on_host, of_passes, done)

    def output(self) -> StepOutput:
        """Wait for the device, and return what it drew."""
        self.done.synchronize()
        return step_output(self.batch, self.drawn, self.passes)


def step_output(batch: StepBatch, drawn: Draw, passes: Sequence[PassDraw] = ()) -> StepOutput:
    """What was drawn, in the order of the plan. Waits for it, where it is on a device."""
    found = _drawn_output(batch, drawn)
    if not passes:
        return found
    failures, logprobs = dict(found.failures), dict(found.logprobs)
    cold = {}
    for key, output, of_pass, own_draw in passes:
        cold[key] = output
        if own_draw is not None:
            own = _drawn_output(of_pass, own_draw)
            failures |= own.failures
            logprobs |= own.logprobs
            token_ids = own.token_ids.tolist()
            cold[key] = output._replace(token_id=token_ids[0] if token_ids else None)
    return replace(found, failures=failures, logprobs=logprobs, cold=cold)


def _drawn_output(batch: StepBatch, drawn: Draw) -> StepOutput:
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
