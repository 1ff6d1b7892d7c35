"""Where an adapter's low-rank pairs lie in one tensor, and how they come there from its file.

Without torch. All of it follows from names, dtypes and shapes, so that adapters of one training
recipe share it: a load then moves bytes, few times, and asks no module anything.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loraplex.adapters.claims import Role
from loraplex.adapters.layout import AdapterLayout
from loraplex.adapters.tensor_file import TensorEntry

_ALIGNMENT = 16
"""Elements: 32 bytes in 16 bits, 64 in float32; kernels ask for 16."""
_LAYER = re.compile(r"\.(\d{1,9})\.")


class Run(NamedTuple):
    """Matrices of one shape that lie at equal distances, in the file and in the tensor; in
    elements, from the beginning of either."""

    source: int
    source_step: int
    start: int
    step: int
    num_matrices: int
    rows: int
    columns: int
    is_b: bool


class Layer(NamedTuple):
    """What is copied together."""

    paths: tuple[str, ...]
    """All modules of the layer."""
    start: int
    """First element of its pairs."""
    end: int
    """Element after the last of them."""


@dataclass(frozen=True, slots=True, eq=False)
class PairLayout:
    """The pairs of all adapters with these modules, ranks and scales."""

    dtype: str
    """Of all pairs in the file, as that spells it; empty if there are none here."""
    number_of: Mapping[str, int]
    """By module path, the row of the arrays."""
    shapes: NDArray[np.int64]
    """``[pairs, 3]``: out, in, rank."""
    starts: NDArray[np.int64]
    """``[pairs, 2]``: first element of a, ``[rank, in]``, and of b; a multiple of 16."""
    scales: NDArray[np.float64]
    """``[pairs]``."""
    num_elements: int
    """Of the tensor."""
    layers: tuple[Layer, ...]
    """In the order in which a forward pass needs them. They lie in that of the file, so that few
    runs fill the tensor."""
    runs: tuple[Run, ...]

    @classmethod
    def of(
        cls, layout: AdapterLayout, scales: Mapping[str, float], data_start: int
    ) -> "PairLayout":
        """Pack the pairs of linear layers; none if they differ in dtype, or lie in the file where
        no number of theirs may. ``data_start`` is the file's first byte of tensors."""
        pairs = {
            path: (module.roles[Role.LORA_A], module.roles[Role.LORA_B])
            for path, module in layout.modules.items()
            if Role.LORA_A in module.roles and Role.LORA_B in module.roles
        }
        if not _can_be_packed([entry for pair in pairs.values() for entry in pair], data_start):
            pairs = {}
        starts, layers, end = [], [], 0
        by_place = _by_place(layout)
        for paths in by_place.values():
            start = end
            for path in paths:
                if path in pairs:
                    b_start = _aligned(end + pairs[path][0].num_elements)
                    starts.append((end, b_start))
                    end = _aligned(b_start + layout.modules[path].num_outputs * _rank(pairs[path]))
            layers.append(Layer(tuple(paths), start, end))
        held = [path for paths in by_place.values() for path in paths if path in pairs]
        shapes = [
            (layout.modules[path].num_outputs, pairs[path][0].shape[1], _rank(pairs[path]))
            for path in held
        ]
        array = np.array([*zip(shapes, starts, strict=True)], np.dtype("3i8, 2i8"))
        return cls(
            dtype=pairs[held[0]][0].dtype if held else "",
            number_of=MappingProxyType({path: number for number, path in enumerate(held)}),
            shapes=np.ascontiguousarray(array["f0"]),
            starts=np.ascontiguousarray(array["f1"]),
            scales=np.array([scales[path] for path in held], np.float64),
            num_elements=end,
            layers=tuple(layer for _, layer in sorted(zip(by_place, layers, strict=True))),
            runs=_runs([pairs[path] for path in held], shapes, starts, data_start),
        )


def _can_be_packed(entries: list[TensorEntry], data_start: int) -> bool:
    if len({entry.dtype for entry in entries}) != 1 or not all(e.num_elements for e in entries):
        return False
    itemsize = entries[0].num_bytes // entries[0].num_elements
    return all((entry.start - data_start) % itemsize == 0 for entry in entries)


def _by_place(layout: AdapterLayout) -> dict[float, list[str]]:
    """Paths of modules by their place in a forward pass, in the order in which places come first:
    the first number in a path is its layer's; those without one are embeddings, which come before
    all layers, or what follows them."""
    places: dict[float, list[str]] = {}
    for path, module in layout.modules.items():
        number = _LAYER.search(path)
        place = float(number[1]) if number else math.inf
        places.setdefault(-1.0 if module.is_embedding else place, []).append(path)
    return places


def _runs(
    pairs: list[tuple[TensorEntry, TensorEntry]],
    shapes: list[tuple[int, int, int]],
    starts: list[tuple[int, int]],
    data_start: int,
) -> tuple[Run, ...]:
    """As long ones as there are: matrices of one kind in all layers, where a file is regular."""
    alike: dict[tuple[str, int, int, bool], list[tuple[int, int]]] = defaultdict(list)
    for (a, b), (out, width, rank), (a_start, b_start) in zip(pairs, shapes, starts, strict=True):
        for entry, start, rows, columns in ((a, a_start, rank, width), (b, b_start, out, rank)):
            itemsize = entry.num_bytes // entry.num_elements
            kind = (_LAYER.sub(".", entry.name, count=1), rows, columns, entry is b)
            alike[kind].append(((entry.start - data_start) // itemsize, start))
    return tuple(
        Run(source, source_step, start, step, count, rows, columns, is_b)
        for (_, rows, columns, is_b), places in alike.items()
        for source, source_step, start, step, count in _progressions(sorted(places))
    )


def _progressions(places: list[tuple[int, int]]) -> Iterable[tuple[int, int, int, int, int]]:
    """Cut places into (source, its step, start, its step, count)."""
    first = 0
    while first < len(places):
        count, step = 1, (0, 0)
        while first + count < len(places):
            (source, start), (next_source, next_start) = places[
                first + count - 1 : first + count + 1
            ]
            found = (next_source - source, next_start - start)
            if (count > 1 and found != step) or found[1] < 0:  # torch steps forwards alone
                break
            step, count = found, count + 1
        source, start = places[first]
        yield source, step[0], start, step[1], count
        first += count


def _rank(pair: tuple[TensorEntry, TensorEntry]) -> int:
    return pair[0].shape[0]


def _aligned(element: int) -> int:
    return -(-element // _ALIGNMENT) * _ALIGNMENT
