"""What follows of an adapter from its config and the header of its file, and from the base model.

Adapters of one training recipe share it, so a load works it out once for all of them. It is found
by a hash of both files' bytes, so that nobody gets another's.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from loraplex.adapters import fit
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.claims import Role, claim
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.digest import tensor_prefix
from loraplex.adapters.errors import Problem
from loraplex.adapters.known import Known
from loraplex.adapters.layout import AdapterLayout
from loraplex.adapters.pair_layout import PairLayout
from loraplex.adapters.targets import resolve
from loraplex.adapters.tensor_file import TensorEntry, entries_of

MAX_OUTLINES = 64
"""That are remembered; up to 1 MB each."""
PATTERN_RETRY_S = 60.0
"""So long after a pattern took too long, it is not tried again."""
_ITEM_BYTES = (2, 4)
"""Of dtypes that are served."""
_PAIR = frozenset({Role.LORA_A, Role.LORA_B})


@dataclass(frozen=True, slots=True)
class Header:
    """What a file's header tells."""

    entries: tuple[TensorEntry, ...]
    """Sorted by name."""
    prefixes: tuple[bytes, ...]
    """What the digest takes of each before its bytes."""
    data_start: int
    """First byte of tensors."""
    key: str
    """Of its bytes and the file's size."""

    @classmethod
    def of(cls, file_name: str, header: bytes, size: int, key: str) -> "Header":
        """Raises TensorFileInvalid where the header contradicts the format or the file's size."""
        entries = entries_of(file_name, header, size)
        return cls(entries, tuple(map(tensor_prefix, entries)), 8 + len(header), key)


@dataclass(frozen=True, slots=True)
class Outline:
    """Where all of an adapter goes."""

    layout: AdapterLayout
    scale_of: Mapping[str, float]
    """By path of module or parameter."""
    pairs: PairLayout
    others: tuple[str, ...]
    """Modules of which not all is packed."""
    host_bytes: int
    """`layout.host_bytes`, which asks all modules."""
    device_bytes: Mapping[int, int]
    """`layout.num_bytes` by bytes of a weight."""

    @classmethod
    def of(
        cls, header: Header, config: AdapterConfig, base: BaseShapes
    ) -> "Outline | tuple[Problem, ...]":
        """Or why it does not fit the base model. Raises PatternTimeout."""
        claims, problems = claim(header.entries, config, base)
        resolved = resolve(config, base, claims)
        problems += fit.problems(config, claims, base, resolved)
        if problems:
            return tuple(problems)
        layout = AdapterLayout.of(claims, config, base)
        pairs = PairLayout.of(layout, resolved.scale_of, header.data_start)
        others = tuple(
            path
            for path, module in layout.modules.items()
            if path not in pairs.number_of or module.roles.keys() - _PAIR
        )
        return cls(
            layout,
            resolved.scale_of,
            pairs,
            others,
            layout.host_bytes,
            {itemsize: layout.num_bytes(itemsize) for itemsize in _ITEM_BYTES},
        )


@dataclass(frozen=True, slots=True)
class Outlines:
    """Those that were asked for last, on one base model. Safe from any thread."""

    _headers: Known[Header] = field(default_factory=lambda: Known(MAX_OUTLINES, PATTERN_RETRY_S))
    _outlines: Known[Outline | tuple[Problem, ...]] = field(
        default_factory=lambda: Known(MAX_OUTLINES, PATTERN_RETRY_S)
    )

    def header(self, file_name: str, header: bytes, size: int) -> Header:
        """See `Header.of`."""
        key = hashlib.sha256(size.to_bytes(8, "little") + header).hexdigest()
        return self._headers.of(key, partial(Header.of, file_name, header, size, key))

    def outline(
        self, header: Header, config: AdapterConfig, base: BaseShapes
    ) -> Outline | tuple[Problem, ...]:
        """See `Outline.of`; ``base`` is always the same."""
        key = hashlib.sha256(f"{header.key} {config!r}".encode()).hexdigest()
        return self._outlines.of(key, partial(Outline.of, header, config, base))
