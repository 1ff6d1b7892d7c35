"""An adapter's low-rank pairs in one tensor, so that it is copied as a whole."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from loraplex.adapters.effects import LoraPair
from loraplex.adapters.own_pages import own_pages
from loraplex.adapters.pair_layout import PairLayout
from loraplex.adapters.shared_pages import HostPages, SharedPages
from loraplex.kernels.segments import PairPlaces

_log = logging.getLogger(__name__)
_PLAIN = HostPages()


@dataclass(frozen=True, slots=True, eq=False)
class PackedPairs(Mapping[str, LoraPair]):
    """Pairs by module path; each is a view of the one tensor."""

    layout: PairLayout
    data: Tensor
    """``[num_elements]``; what lies between matrices means nothing."""
    b_is_transposed: bool
    """``b`` lies in memory as ``[rank, out]``, as the compiled kernel of CPUs reads it."""
    shared: SharedPages | None = None
    """Where the tensor lies, if other processes can map it."""
    _views: dict[str, LoraPair] = field(default_factory=dict)

    @classmethod
    def gathered(
        cls,
        layout: PairLayout,
        source: Tensor,
        *,
        transposes_b: bool,
        pages: HostPages = _PLAIN,
    ) -> "PackedPairs":
        """Gather what a file holds: ``source`` are the bytes of its tensors in the pairs' dtype.
        Where too many files are open, it is not shared."""
        shared = _shared(layout.num_elements, source.dtype, pages)
        if shared is not None:
            data = shared.data
        elif pages.pins:
            data = torch.empty(layout.num_elements, dtype=source.dtype, pin_memory=True)
        else:
            data = own_pages(layout.num_elements, source.dtype)
        for run in layout.runs:
            shape = (run.num_matrices, run.rows, run.columns)
            within = (1, run.rows) if run.is_b and transposes_b else (run.columns, 1)
            place = data.as_strided(shape, (run.step, *within), run.start)
            strides = (run.source_step, run.columns, 1)
            place.copy_(source.as_strided(shape, strides, run.source))
        return cls(layout, data, transposes_b, shared)

    def on_device(self, data: Tensor) -> "PackedPairs":
        """The same pairs in other memory, ``[num_elements]``, that lies as this does."""
        return PackedPairs(self.layout, data, self.b_is_transposed)

    def __getitem__(self, path: str) -> LoraPair:
        if path not in self._views:
            self._views[path] = self._view(self.layout.number_of[path])
        return self._views[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.number_of)

    def __len__(self) -> int:
        return len(self.layout.number_of)

    def fits(self, dtype: torch.dtype, device: torch.device, *, b_is_transposed: bool) -> bool:
        """True if a kernel for these can read it as it lies."""
        return (
            self.data.dtype is dtype
            and self.data.device.type == device.type
            and self.b_is_transposed is b_is_transposed
        )

    def places(self, numbers: Mapping[str, int]) -> PairPlaces:
        """Where each pair lies; ``numbers`` are the modules', by path."""
        layout = self.layout
        modules = np.array([numbers[path] for path in layout.number_of], np.int64)
        return PairPlaces(modules, layout.shapes, layout.starts, layout.scales)

    def _view(self, number: int) -> LoraPair:
        out, width, rank = self.layout.shapes[number].tolist()
        a_start, b_start = self.layout.starts[number].tolist()
        of_b = (1, out) if self.b_is_transposed else (rank, 1)
        return LoraPair(
            self.data.as_strided((rank, width), (width, 1), a_start),
            self.data.as_strided((out, rank), of_b, b_start),
            float(self.layout.scales[number]),
        )


def _shared(num_elements: int, dtype: torch.dtype, pages: HostPages) -> SharedPages | None:
    if not pages.shares or not num_elements:
        return None
    try:
        return SharedPages.of(num_elements, dtype, pins=pages.pins)
    except OSError as error:
        _log.warning("an adapter cannot be shared with other processes: %s", error)
        return None
