"""Adapters of a store, for a runner."""

from collections.abc import Callable
from dataclasses import dataclass

from loraplex.adapters import weights
from loraplex.adapters.storage import Store
from loraplex.adapters.weights import AdapterWeights, VerifiedAdapter
from loraplex.engine.runner import ModelRunner


@dataclass(frozen=True, slots=True)
class StoredAdapters:
    """An `AdapterSource`. On a GPU what is read lies in pinned memory; that has not been run on
    one."""

    store: Store
    runner: ModelRunner

    def read(self, digest: str) -> VerifiedAdapter:
        """See `weights.read`."""
        pins = self.runner.model.device.type == "cuda"
        model = self.runner.model
        return weights.read(self.store, digest, model.shapes, model.weights, pins=pins)

    def place(
        self, on_host: VerifiedAdapter, on_layer: Callable[[int, int], None]
    ) -> AdapterWeights:
        """See `weights.place`; made ready for the runner's kernels."""
        model = self.runner.model
        placed = weights.place(on_host, dtype=model.dtype, device=model.device, on_layer=on_layer)
        return self.runner.locate(placed)

    def plain(self, digest: str) -> AdapterWeights:
        """Read and place an adapter as plain torch computes it, beside what is resident.

        Raises what `read` raises."""
        model = self.runner.model
        return weights.place(self.read(digest), dtype=model.dtype, device=model.device)
