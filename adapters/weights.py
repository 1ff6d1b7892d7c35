"""A stored adapter as tensors, at its true rank."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch

from loraplex.adapters import fit
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import TENSORS_FILE, read_config, read_profile
from loraplex.adapters.claims import Claims, Role, claim
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.digest import AdapterHash, with_profile
from loraplex.adapters.effects import ModuleEffect
from loraplex.adapters.errors import AdapterCorrupt, AdapterMismatch, Problem, TensorFileInvalid
from loraplex.adapters.storage import Store
from loraplex.adapters.targets import scales
from loraplex.adapters.tensor_file import TensorEntry, read_chunks, read_entries
from loraplex.kernels.segments import LoraTable

_LAYER = re.compile(r"\.(\d{1,9})\.")
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


@dataclass(frozen=True, slots=True)
class VerifiedAdapter:
    """An adapter in the host's memory, as its files have it: what was read is what was verified.

    In the dtype of the files, since a copy to the device is made in any case and can convert as it
    copies: so 16-bit adapters under a model in float32 take half of what they do there.
    """

    config: AdapterConfig
    claims: Claims
    """By module path."""
    tensors: Mapping[str, torch.Tensor]
    """By name; pinned if the device is a GPU."""

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def load(
    store: Store,
    digest: str,
    base: BaseShapes,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> AdapterWeights:
    """`read`, then `place`."""
    return place(read(store, digest, base), dtype=dtype, device=device)


def read(store: Store, digest: str, base: BaseShapes, *, pins: bool = False) -> VerifiedAdapter:
    """Read an adapter, and verify that its bytes are those of the digest. `pins` puts it in memory
    that a GPU can read beside what the host does.

    It was checked when it was stored, but the base model may be another since, of the same name.

    Raises:
        AdapterMissing: the store does not have it.
        AdapterCorrupt: its files are not what was stored.
        AdapterMismatch: it does not fit ``base``.
    """
    directory = store.open(digest)
    config, problems = read_config(directory)
    if problems:
        raise AdapterCorrupt(digest, "; ".join(map(str, problems)))
    try:
        entries = read_entries(directory / TENSORS_FILE)
        weights_digest, tensors = _read(directory, config, entries)
        found = with_profile(weights_digest, read_profile(directory))
    except (OSError, TensorFileInvalid) as error:
        raise AdapterCorrupt(digest, str(error)) from error
    if found != digest:
        raise AdapterCorrupt(digest, f"its files have digest {found}")
    claims, problems = claim(entries, config, base)
    problems += fit.problems(config, claims, base)
    unserved = {role for roles in claims.values() for role in roles} - {Role.LORA_A, Role.LORA_B}
    problems += [Problem(role.value, "", "is not served") for role in sorted(unserved, key=str)]
    if problems:
        raise AdapterMismatch(digest, tuple(problems))
    if pins:
        tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    return VerifiedAdapter(config, claims, MappingProxyType(tensors))


def place(
    adapter: VerifiedAdapter,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    on_layer: Callable[[int, int], None] = lambda _done, _all: None,
) -> AdapterWeights:
    """Copy an adapter to the device, layer by layer, into memory of its own. ``on_layer`` is told
    how many layers are there, and of how many."""
    layers = _by_layer(adapter.tensors)
    placed: dict[str, torch.Tensor] = {}
    for num_done, names in enumerate(layers, 1):
        for name in names:
            # A copy, on a CPU too: what one memory gives up must not be held by the other.
            placed[name] = adapter.tensors[name].to(device, dtype, copy=True)
        on_layer(num_done, len(layers))
    claims = adapter.claims
    rank_of = {module: roles[Role.LORA_A].shape[0] for module, roles in claims.items()}
    scale_of = scales(adapter.config, rank_of)
    return AdapterWeights(
        num_bytes=sum(tensor.nbytes for tensor in placed.values()),
        pairs=MappingProxyType(
            {
                module: LoraPair(
                    placed[roles[Role.LORA_A].name],
                    placed[roles[Role.LORA_B].name],
                    scale_of[module],
                )
                for module, roles in claims.items()
            }
        ),
    )


def _by_layer(names: Iterable[str]) -> list[list[str]]:
    """Names of tensors by the first number in their path, which is the layer's; those without one
    come first, with the first layer."""
    layers: dict[int, list[str]] = {}
    for name in names:
        number = _LAYER.search(name)
        layers.setdefault(int(number[1]) if number else 0, []).append(name)
    return [layers[number] for number in sorted(layers)]


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
