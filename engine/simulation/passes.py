"""Passes of cold starts on the simulated device: layers that have come, one after the other."""

from collections.abc import Mapping

from loraplex.engine.cost_features import StepFeatures
from loraplex.engine.plan import Chunk, ColdChunk, ColdOutput, StepPlan
from loraplex.engine.simulation.copies import NUM_LAYERS, Link
from loraplex.engine.simulation.devices import Device
from loraplex.engine.simulation.model import ScriptedModel

_HAND_OVER_MS = 0.2
"""Of one layer to the host's processes and back."""


class Passes:
    """What the runner keeps of passes that are under way."""

    def __init__(self, device: Device, link: Link, model: ScriptedModel) -> None:
        self._device = device
        self._link = link
        self._model = model
        self._begun: dict[str, ColdOutput] = {}

    def run(
        self, plan: StepPlan, at_s: float, ranks: Mapping[str, float]
    ) -> tuple[dict[str, ColdOutput], float]:
        """Let the plan's passes go on, from the time when the rest of the step is computed. Return
        how far they have come, and when the last of them is; `ranks` by request."""
        told: dict[str, ColdOutput] = {}
        for cold in plan.cold:
            key = cold.chunk.request_id
            before = self._begun.get(key, ColdOutput(0))
            told[key] = before._replace(waited_ms=0.0)
            if cold.advances:
                told[key], at_s = self._advance(cold, before, at_s, ranks[key])
        self._begun = {key: output for key, output in told.items() if not output.is_done}
        return told, at_s

    def _advance(
        self, cold: ColdChunk, before: ColdOutput, at_s: float, rank: float
    ) -> tuple[ColdOutput, float]:
        chunk = cold.chunk
        assert chunk.adapter is not None
        layer_s = self._layer_s(chunk, rank)
        host_s = self._host_s(chunk, rank)
        layers, host_layers, waited_s = before.num_layers, before.num_host_layers, 0.0
        affordable = int((cold.until_part - before.part) * NUM_LAYERS + 1e-9)
        most = layers + max(1, affordable)  # here a layer is never left half computed
        while layers < min(cold.until_layer, most):
            missing_s = self._link.layer_arrival_s(chunk.adapter, layers) - at_s
            if missing_s <= 0:
                at_s += layer_s
            elif cold.may_assist:
                at_s += max(layer_s, host_s)
                host_layers += 1
            elif (waited_s + missing_s) * 1e3 <= cold.wait_ms:
                waited_s += missing_s
                at_s += missing_s + layer_s
            else:
                break
            layers += 1
        is_done = layers >= NUM_LAYERS
        token_id = self._model.token(chunk) if is_done and chunk.sample is not None else None
        host_ms = before.host_ms + (host_layers - before.num_host_layers) * host_s * 1e3
        output = ColdOutput(
            layers,
            host_layers,
            is_done,
            token_id,
            host_ms,
            waited_s * 1e3,
            layers / NUM_LAYERS,
        )
        return output, at_s

    def _layer_s(self, chunk: Chunk, rank: float) -> float:
        """All of the base model is read for a pass, whatever the step beside it has read."""
        size = len(chunk.token_ids)
        alone = StepFeatures(size, 0, size, float(size**2), float(size * chunk.start), 0, rank, 1)
        return self._device.times.step_ms(alone) / 1e3 / NUM_LAYERS

    def _host_s(self, chunk: Chunk, rank: float) -> float:
        """Two operations for each parameter of two bytes and each token."""
        layer_bytes = rank * self._device.bytes_per_rank / NUM_LAYERS
        computed_s = len(chunk.token_ids) * layer_bytes / self._device.host_operations_per_s
        return _HAND_OVER_MS / 1e3 + computed_s
