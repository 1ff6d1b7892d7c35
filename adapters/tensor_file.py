"""The safetensors container, read without trusting a byte of it and without torch.

Layout (https://github.com/huggingface/safetensors#format): 8 bytes little-endian length of the
header, the header in JSON (name → dtype, shape, data_offsets), then the tensors' bytes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

from loraplex.adapters import strict_json
from loraplex.adapters.errors import TensorFileInvalid

MAX_HEADER_BYTES = 16 * 1024 * 1024
MAX_TENSORS = 65_536
MAX_NAME_CHARS = 512

_MAX_DIMENSIONS = 8
_MAX_SIZE = (1 << 63) - 1
"""Of a dimension: digests have 64 bits for it."""
_CHUNK_BYTES = 128 * 1024  # what is computed of a chunk finds it in the cache still
_ITEM_BYTES = MappingProxyType(
    {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4}
    | {"BF16": 2, "F16": 2, "I16": 2, "U16": 2}
    | {"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
)


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: bytes [start, start + num_bytes) of the file, row-major."""

    name: str
    dtype: str
    """`F32`, `BF16`, … as the format spells them."""
    shape: tuple[int, ...]
    start: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        """Product of the shape; 1 for a scalar."""
        return math.prod(self.shape)


class _Spec(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_entries(path: Path) -> tuple[TensorEntry, ...]:
    """Read the header of a safetensors file and return its tensors, sorted by name.

    Raises:
        TensorFileInvalid: anything in the header contradicts the format or the file's size.
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = header_bytes(path.name, file.read(8), size)
        header = file.read(length)
    return entries_of(path.name, header, size)


def header_bytes(name: str, start: bytes, size: int) -> int:
    """Length of the header of a file of ``size`` bytes that begins with the 8 bytes ``start``.

    Raises:
        TensorFileInvalid: it cannot be.
    """
    length = int.from_bytes(start, "little")
    if size < 8 or length > size - 8:
        raise TensorFileInvalid(f"{name} is truncated: {size} bytes, header of {length}")
    if length > MAX_HEADER_BYTES:
        raise TensorFileInvalid(
            f"{name} has a header of {length} bytes; at most {MAX_HEADER_BYTES} are read"
        )
    return length


def entries_of(name: str, header: bytes, size: int) -> tuple[TensorEntry, ...]:
    """The tensors that a header tells, of a file of ``size`` bytes; sorted by name.

    Raises:
        TensorFileInvalid: anything in it contradicts the format or the size.
    """
    try:
        entries = _parse(header, data_start=8 + len(header))
    except (ValueError, msgspec.ValidationError) as error:
        raise TensorFileInvalid(f"{name} has a corrupt header: {error}") from error
    _check_tiling(name, entries, start=8 + len(header), end=size)
    return tuple(sorted(entries, key=lambda entry: entry.name))


def read_chunks(path: Path, entry: TensorEntry) -> Iterator[bytes]:
    """Yield the bytes of one tensor in chunks, each a multiple of 8 bytes except the last."""
    left = entry.num_bytes
    if not left:
        return
    with path.open("rb") as file:
        file.seek(entry.start)
        while left:
            chunk = file.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise TensorFileInvalid(f"{path.name} shrank while tensor {entry.name} was read")
            left -= len(chunk)
            yield chunk


def _parse(header: bytes, data_start: int) -> list[TensorEntry]:
    specs = msgspec.convert(strict_json.decode(header), dict[str, object])
    msgspec.convert(specs.pop("__metadata__", {}), dict[str, str])
    if len(specs) > MAX_TENSORS:
        raise ValueError(f"{len(specs)} tensors; at most {MAX_TENSORS} are read")
    return [
        _entry(name, msgspec.convert(spec, _Spec, strict=True), data_start)
        for name, spec in specs.items()
    ]


def _entry(name: str, spec: _Spec, data_start: int) -> TensorEntry:
    begin, end = spec.data_offsets
    if spec.dtype not in _ITEM_BYTES:
        raise ValueError(f"tensor {name[:200]!r} has unknown dtype {spec.dtype[:20]!r}")
    if len(spec.shape) > _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name[:200]!r} has {len(spec.shape)} dimensions")
    if begin < 0 or any(not 0 <= size <= _MAX_SIZE for size in spec.shape):
        raise ValueError(f"tensor {name[:200]!r} has an impossible size or offset")
    if len(name) > MAX_NAME_CHARS:
        raise ValueError(f"tensor {name[:200]!r} has a name of {len(name)} characters")
    num_bytes = math.prod(spec.shape) * _ITEM_BYTES[spec.dtype]
    if end - begin != num_bytes:
        raise ValueError(
            f"tensor {name[:200]!r} needs {num_bytes} bytes by its shape, its offsets span "
            f"{end - begin}"
        )
    return TensorEntry(name, spec.dtype, tuple(spec.shape), data_start + begin, num_bytes)


def _check_tiling(file_name: str, entries: list[TensorEntry], start: int, end: int) -> None:
    """The tensors must cover the data exactly: no overlap, no hole, nothing beyond the file."""
    position = start
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.num_bytes)):
        if entry.start != position:
            what = "overlaps another" if entry.start < position else "leaves a hole before it"
            raise TensorFileInvalid(f"{file_name}: tensor {entry.name[:200]!r} {what}")
        position += entry.num_bytes
    if position != end:
        raise TensorFileInvalid(
            f"{file_name} holds {end - start} bytes of tensors, its header describes "
            f"{position - start}: truncated or padded"
        )
