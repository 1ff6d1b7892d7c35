"""Requests through scheduler and runner, in mixed batches, with the logits of all they sampled."""

from collections.abc import Mapping, Sequence

from tests.engine.alone import NUM_TOKENS
from tests.engine.model_world import ModelWorld
from tests.engine.packed_greedy import Request
from torch import Tensor

from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.batch import StepBatch
from loraplex.engine.runner import ModelRunner


class RecordingRunner(ModelRunner):
    """Keeps what it computed."""

    recorded: dict[str, list[Tensor]]

    def logits(self, batch: StepBatch) -> Tensor:
        logits = super().logits(batch)
        for place, row in zip(batch.places, logits, strict=True):
            self.recorded.setdefault(batch.sampled_keys[place], []).append(row.clone())
        return logits


def serve(
    runner: RecordingRunner,
    requests: Sequence[Request],
    adapters: Mapping[AdapterKey, AdapterWeights],
) -> None:
    """Fill in tokens and logits of all requests, which run together."""
    runner.recorded = {}
    world = ModelWorld(
        runner,
        adapters,
        num_blocks=400,
        max_running=100,
        max_step_tokens=40,
        max_waiting_requests=200,
        max_waiting_tokens=4000,
    )
    for request in requests:
        adapter = None if request.adapter is None else request.adapter.digest
        world.add(request.request_id, request.prompt, NUM_TOKENS, adapter=adapter)
    world.run()
    for request in requests:
        request.tokens = world.tokens[request.request_id]
        request.logits = runner.recorded[request.request_id]
