"""A stored adapter as tensors, at its true rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import (
    TENSORS_FILE,
    pair_up,
    read_config,
    read_profile,
    shape_problems,
)
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.digest import AdapterHash, with_profile
from loraplex.adapters.errors import AdapterCorrupt, AdapterMismatch, TensorFileInvalid
from loraplex.adapters.storage import Store
from loraplex.adapters.targets import scales
from loraplex.adapters.tensor_file import TensorEntry, read_chunks, read_entries
from loraplex.kernels.segments import LoraTable

_DTYPES = MappingProxyType(
    {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16},
)


@dataclass(frozen=True, slots=True)
class LoraPair:
    """One module's update: y += scale · B (A x)."""

    a: torch.Tensor
    """[rank, in], contiguous."""
    b: torch.Tensor
    """[out, rank], contiguous; for the compiled kernel of CPUs transposed in memory."""
    scale: float
    """Kept apart from B, so that B stays the bytes that were uploaded; applied in expand."""


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """All pairs of one adapter on one device."""

    num_bytes: int
    pairs: Mapping[str, LoraPair]
    """By module path."""
    table: LoraTable | None = None
    """Where the pairs lie, for compiled kernels; by the model's own order of modules."""


def load(
    store: Store,
    digest: str,
    base: BaseShapes,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> AdapterWeights:
    """Read an adapter, verify that its bytes are those of the digest, and move it to the device.

    It was checked when it was stored, but the base model may be another since, of the same name.

    Raises:
        AdapterMissing: the store does not have it.
        AdapterCorrupt: its files are not what was stored.
        AdapterMismatch: it does not fit ``base``.
    """
    directory = store.open(digest)
    config, problems = read_config(directory)
    if problems:
        raise AdapterCorrupt(digest, "; ".join(problems))
    try:
        entries = read_entries(directory / TENSORS_FILE)
        weights_digest, tensors = _read(directory, config, entries)
        found = with_profile(weights_digest, read_profile(directory))
    except (OSError, TensorFileInvalid) as error:
        raise AdapterCorrupt(digest, str(error)) from error
    if found != digest:
        raise AdapterCorrupt(digest, f"its files have digest {found}")
    pairs, problems = pair_up(entries)
    assert not problems, "an adapter was stored without a check"
    problems = shape_problems(config, pairs, base)
    if problems:
        raise AdapterMismatch(digest, tuple(problems))
    placed = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
    scale_of = scales(config, {module: pair.rank for module, pair in pairs.items()})
    return AdapterWeights(
        num_bytes=sum(tensor.nbytes for tensor in placed.values()),
        pairs=MappingProxyType(
            {
                module: LoraPair(placed[pair.a.name], placed[pair.b.name], scale_of[module])
                for module, pair in pairs.items()
            }
        ),
    )


def _read(
    directory: Path, config: AdapterConfig, entries: tuple[TensorEntry, ...]
) -> tuple[str, dict[str, torch.Tensor]]:
    """Read each byte once, for the digest and the tensors alike: what is used was verified."""
    adapter_hash = AdapterHash(config)
    tensors = {}
    for entry in entries:
        adapter_hash.start_tensor(entry)
        data = bytearray().join(read_chunks(directory / TENSORS_FILE, entry))
        adapter_hash.add_bytes(data)
        if entry.dtype not in _DTYPES:
            raise TensorFileInvalid(f"tensor {entry.name} is {entry.dtype}")
        tensors[entry.name] = torch.frombuffer(data, dtype=_DTYPES[entry.dtype]).view(entry.shape)
    return adapter_hash.hexdigest(), tensors
