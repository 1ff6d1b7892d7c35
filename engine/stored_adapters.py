"""Adapters of a store, for a runner."""

from collections.abc import Callable
from dataclasses import dataclass

from loraplex.adapters import weights
from loraplex.adapters.storage import Store
from loraplex.adapters.weights import AdapterWeights, VerifiedAdapter
from loraplex.engine.own_tokenizers import OwnTokenizers
from loraplex.engine.runner import ModelRunner


@dataclass(frozen=True, slots=True)
class StoredAdapters:
    """An `AdapterSource`. On a GPU what is read lies in pinned memory; that has not been run on
    one."""

    store: Store
    runner: ModelRunner
    tokenizers: OwnTokenizers

    def read(self, digest: str) -> VerifiedAdapter:
        """See `weights.read`. Its tokenizer is read too, so that no step waits for that."""
        pins = self.runner.model.device.type == "cuda"
        model = self.runner.model
        read = weights.read(self.store, digest, model.shapes, model.weights, pins=pins)
        self.tokenizers.learn(digest)
        return read

    def place(
        self, on_host: VerifiedAdapter, on_layer: Callable[[int, int], None]
    ) -> AdapterWeights:
        """See `weights.place`; made ready for the runner's kernels."""
        model = self.runner.model
        placed = weights.place(on_host, dtype=model.dtype, device=model.device, on_layer=on_layer)
        return self.runner.locate(placed)
