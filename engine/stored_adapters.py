"""Adapters of a store, for a runner."""

from dataclasses import dataclass, field

from loraplex.adapters import placement, weights
from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.outline import Outlines
from loraplex.adapters.shared_pages import HostPages
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
    shares: bool = False
    """What the host has can be mapped by other processes."""

    def read(self, digest: str) -> VerifiedAdapter:
        """See `weights.read`; laid out as the runner's kernels read it."""
        return self._read(digest, transposes_b=self.runner.reads_b_transposed)

    def place(self, on_host: VerifiedAdapter, progress: LoadProgress) -> AdapterWeights:
        """See `placement.place`; made ready for the runner's kernels."""
        model = self.runner.model
        with self.runner.beside():
            return placement.place(
                on_host,
                dtype=model.dtype,
                device=model.device,
                progress=progress,
                prepare=self.runner.locate,
            )

    def plain(self, digest: str) -> AdapterWeights:
        """Read and place an adapter as plain torch computes it, beside what is resident.

        Raises what `read` raises."""
        model = self.runner.model
        read = self._read(digest, transposes_b=False)
        return placement.place(read, dtype=model.dtype, device=model.device)

    def _read(self, digest: str, *, transposes_b: bool) -> VerifiedAdapter:
        model = self.runner.model
        return weights.read(
            self.store,
            digest,
            model.shapes,
            model.weights,
            pages=HostPages(pins=model.device.type == "cuda", shares=self.shares),
            transposes_b=transposes_b,
            outlines=self.outlines,
        )
