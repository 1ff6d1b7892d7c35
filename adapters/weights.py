"""A stored adapter as tensors, at its true rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch

from loraplex.adapters import fit
from loraplex.adapters.assembly import Assembly
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import TENSORS_FILE, read_config
from loraplex.adapters.claims import Claims, Role, claim
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.digest import AdapterHash
from loraplex.adapters.effects import BaseWeights, LoraPair, ModuleEffect
from loraplex.adapters.errors import AdapterCorrupt, AdapterMismatch, TensorFileInvalid
from loraplex.adapters.layout import AdapterLayout
from loraplex.adapters.storage import AdapterStore
from loraplex.adapters.targets import scales
from loraplex.adapters.tensor_file import TensorEntry, read_chunks, read_entries
from loraplex.kernels.segments import LoraTable

_DTYPES = MappingProxyType(
    {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16},
)


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """All that one adapter does, on one device."""

    num_bytes: int
    pairs: Mapping[str, LoraPair]
    """Low-rank updates of linear layers, by module path."""
    effects: Mapping[str, ModuleEffect] = field(default_factory=lambda: MappingProxyType({}))
    """What else it does, by module path."""
    vocab_size: int | None = None
    """Tokens that it has; None if they are those of the base model."""
    table: LoraTable | None = None
    """Where the pairs lie, for compiled kernels; by the model's own order of modules."""


def load(
    store: AdapterStore,
    digest: str,
    base: BaseShapes,
    base_weights: BaseWeights,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> AdapterWeights:
    """Read an adapter, verify that its bytes are those of the digest, and move it to the device.

    It was checked when it was stored, but the base model may be another since, of the same name;
    and what it has of the base's weights is compared with them here for the first time.

    Raises:
        AdapterMissing: the store does not have it.
        AdapterCorrupt: its files are not what was stored.
        AdapterMismatch: it does not fit ``base`` or ``base_weights``.
    """
    directory = store.open(digest)
    config, problems = read_config(directory)
    if problems:
        raise AdapterCorrupt(digest, "; ".join(map(str, problems)))
    try:
        entries = read_entries(directory / TENSORS_FILE)
        found, tensors = _read(directory, config, entries)
    except (OSError, TensorFileInvalid) as error:
        raise AdapterCorrupt(digest, str(error)) from error
    if found != digest:
        raise AdapterCorrupt(digest, f"its files have digest {found}")
    claims, problems = claim(entries, config, base)
    problems += fit.problems(config, claims, base)
    if problems:
        raise AdapterMismatch(digest, tuple(problems))
    layout = AdapterLayout.of(claims, config, base)
    assembly = Assembly(
        layout, tensors, scales(config, _ranks(claims)), base_weights, (dtype, torch.device(device))
    )
    modules = assembly.modules()
    if assembly.problems:
        raise AdapterMismatch(digest, tuple(assembly.problems))
    return AdapterWeights(
        num_bytes=layout.num_bytes(dtype.itemsize),
        pairs=MappingProxyType({p: m.pair for p, m in modules.items() if m.pair is not None}),
        effects=MappingProxyType({p: m.effect for p, m in modules.items() if m.effect is not None}),
        vocab_size=layout.vocab_size,
    )


def _ranks(claims: Claims) -> dict[str, int]:
    sides = (Role.LORA_A, Role.EMBEDDING_A)
    return {
        path: roles[side].shape[0]
        for path, roles in claims.items()
        for side in sides
        if side in roles
    }


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
