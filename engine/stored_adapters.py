"""Adapters of a store, for a runner."""

from collections.abc import Callable
from dataclasses import dataclass, field

from loraplex.adapters import weights
from loraplex.adapters.outline import Outlines
from loraplex.adapters.storage import Store
from loraplex.adapters.weights import AdapterWeights, VerifiedAdapter
from loraplex.engine.runner import ModelRunner


@dataclass(frozen=True, slots=True)
class StoredAdapters:
    """An `AdapterSource`. On a GPU what is read lies in pinned memory; that has not been run on
    one."""

    store: Store
    runner: ModelRunner
    outlines: Outlines = field(default_factory=Outlines)

    def read(self, digest: str) -> VerifiedAdapter:
        """See `weights.read`; laid out as the runner's kernels read it."""
        return self._read(digest, transposes_b=self.runner.reads_b_transposed)

    def place(
        self, on_host: VerifiedAdapter, on_layer: Callable[[int, int], None]
    ) -> AdapterWeights:
        """See `weights.place`; made ready for the runner's kernels."""
        model = self.runner.model
        with self.runner.beside():
            placed = weights.place(
                on_host, dtype=model.dtype, device=model.device, on_layer=on_layer
            )
            return self.runner.locate(placed)

    def plain(self, digest: str) -> AdapterWeights:
        """Read and place an adapter as plain torch computes it, beside what is resident.

        Raises what `read` raises."""
        model = self.runner.model
        read = self._read(digest, transposes_b=False)
        return weights.place(read, dtype=model.dtype, device=model.device)

    def _read(self, digest: str, *, transposes_b: bool) -> VerifiedAdapter:
        model = self.runner.model
        return weights.read(
            self.store,
            digest,
            model.shapes,
            model.weights,
            pins=model.device.type == "cuda",
            transposes_b=transposes_b,
            outlines=self.outlines,
        )
