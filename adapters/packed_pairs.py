"""An adapter's low-rank pairs in one tensor, so that it is copied as a whole."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from loraplex.adapters.effects import LoraPair
from loraplex.adapters.own_pages import own_pages
from loraplex.adapters.pair_layout import PairLayout
from loraplex.kernels.segments import PairPlaces


@dataclass(frozen=True, slots=True, eq=False)
class PackedPairs(Mapping[str, LoraPair]):
    """Pairs by module path; each is a view of the one tensor."""

    layout: PairLayout
    data: Tensor
    """``[num_elements]``; what lies between matrices means nothing."""
    b_is_transposed: bool
    """``b`` lies in memory as ``[rank, out]``, as the compiled kernel of CPUs reads it."""
    _views: dict[str, LoraPair] = field(default_factory=dict)

    @classmethod
    def gathered(
        cls, layout: PairLayout, source: Tensor, *, transposes_b: bool, pins: bool = False
    ) -> "PackedPairs":
        """Gather what a file holds: ``source`` are the bytes of its tensors in the pairs' dtype.
        ``pins`` puts it into memory that a GPU can read beside what the host does."""
        if pins:
            data = torch.empty(layout.num_elements, dtype=source.dtype, pin_memory=True)
        else:
            data = own_pages(layout.num_elements, source.dtype)
        for run in layout.runs:
            shape = (run.num_matrices, run.rows, run.columns)
            within = (1, run.rows) if run.is_b and transposes_b else (run.columns, 1)
            place = data.as_strided(shape, (run.step, *within), run.start)
            strides = (run.source_step, run.columns, 1)
            place.copy_(source.as_strided(shape, strides, run.source))
        return cls(layout, data, transposes_b)

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
