"""A stored adapter as tensors, at its true rank."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch

from loraplex.adapters import fit
from loraplex.adapters.assembly import Assembly
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import TENSORS_FILE, read_config, read_profile
from loraplex.adapters.claims import claim
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.digest import AdapterHash, with_profile
from loraplex.adapters.effects import Assembled, BaseWeights, Copy, LoraPair, ModuleEffect
from loraplex.adapters.errors import AdapterCorrupt, AdapterMismatch, TensorFileInvalid
from loraplex.adapters.experts import ExpertPairs
from loraplex.adapters.layout import AdapterLayout
from loraplex.adapters.profile import AddedToken, Profile, decode
from loraplex.adapters.storage import Store
from loraplex.adapters.targets import matcher_for, ranks, scales
from loraplex.adapters.tensor_file import TensorEntry, read_chunks, read_entries
from loraplex.kernels.segments import LoraTable

_LAYER = re.compile(r"\.(\d{1,9})\.")
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
    parameters: Mapping[str, ExpertPairs] = field(default_factory=lambda: MappingProxyType({}))
    """Updates of parameters, by their paths."""
    vocab_size: int | None = None
    """Tokens that it has; None if they are those of the base model."""
    added_tokens: Mapping[int, AddedToken] = field(default_factory=lambda: MappingProxyType({}))
    """What its tokenizer adds to the base model's, by token id."""
    table: LoraTable | None = None
    """Where the pairs lie, for compiled kernels; by the model's own order of modules."""


@dataclass(frozen=True, slots=True)
class VerifiedAdapter:
    """An adapter in the host's memory: what was read is what was verified.

    Weights are in the dtype of the files, since a copy to the device is made in any case and can
    convert as it copies: so 16-bit adapters under a model in float32 take half of what they do
    there.
    """

    layout: AdapterLayout
    modules: Mapping[str, Assembled]
    """What it does, by module path; pinned if the device is a GPU."""
    profile: Profile = field(default_factory=Profile)
    """What is kept of it."""

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return self.layout.host_bytes


def load(
    store: Store,
    digest: str,
    base: BaseShapes,
    base_weights: BaseWeights,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> AdapterWeights:
    """`read`, then `place`."""
    return place(read(store, digest, base, base_weights), dtype=dtype, device=device)


def read(
    store: Store,
    digest: str,
    base: BaseShapes,
    base_weights: BaseWeights,
    *,
    pins: bool = False,
) -> VerifiedAdapter:
    """Read an adapter, and verify that its bytes are those of the digest. `pins` puts it in memory
    that a GPU can read beside what the host does.

    It was checked when it was stored, but the base model may be another since, of the same name;
    and what it has of the base's weights is compared with them here for the first time.

    Raises:
        AdapterMissing: the store does not have it.
        AdapterCorrupt: its files are not what was stored.
        AdapterMismatch: it does not fit ``base`` or ``base_weights``.
        PatternTimeout: a pattern of its config was not matched in time.
    """
    directory = store.open(digest)
    config, problems = read_config(directory)
    if problems:
        raise AdapterCorrupt(digest, "; ".join(map(str, problems)))
    try:
        entries = read_entries(directory / TENSORS_FILE)
        weights_digest, tensors = _read(directory, config, entries)
        kept = read_profile(directory)
    except (OSError, TensorFileInvalid) as error:
        raise AdapterCorrupt(digest, str(error)) from error
    found = with_profile(weights_digest, kept)
    if found != digest:
        raise AdapterCorrupt(digest, f"its files have digest {found}")
    claims, problems = claim(entries, config, base)
    matcher = matcher_for(config, base)
    problems += fit.problems(config, claims, base, matcher)
    if problems:
        raise AdapterMismatch(digest, tuple(problems))
    layout = AdapterLayout.of(claims, config, base)
    scale_of = scales(config, ranks(config, claims, matcher), matcher)
    assembly = Assembly(layout, tensors, scale_of, base_weights)
    modules = assembly.modules()
    if assembly.problems:
        raise AdapterMismatch(digest, tuple(assembly.problems))
    if pins:
        pin = _Once(torch.Tensor.pin_memory)
        modules = {path: module.copied(pin, pin) for path, module in modules.items()}
    return VerifiedAdapter(layout, MappingProxyType(modules), decode(kept))


def place(
    adapter: VerifiedAdapter,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    on_layer: Callable[[int, int], None] = lambda _done, _all: None,
) -> AdapterWeights:
    """Copy an adapter to the device, layer by layer, into memory of its own. ``on_layer`` is told
    how many layers are there, and of how many."""

    # Copies, on a CPU too: what one memory gives up must not be held by the other.
    weight = _Once(lambda tensor: tensor.to(device, dtype, copy=True))
    exact = _Once(lambda tensor: tensor.to(device, copy=True))
    layers = _by_layer(adapter.modules)
    placed: dict[str, Assembled] = {}
    for num_done, paths in enumerate(layers, 1):
        for path in paths:
            placed[path] = adapter.modules[path].copied(weight, exact)
        on_layer(num_done, len(layers))
    return AdapterWeights(
        num_bytes=adapter.layout.num_bytes(dtype.itemsize),
        pairs=MappingProxyType({p: m.pair for p, m in placed.items() if m.pair is not None}),
        effects=MappingProxyType({p: m.effect for p, m in placed.items() if m.effect is not None}),
        parameters=MappingProxyType(
            {p: m.experts for p, m in placed.items() if m.experts is not None}
        ),
        vocab_size=adapter.layout.vocab_size,
        added_tokens=MappingProxyType({t.id: t for t in adapter.profile.added_tokens}),
    )


class _Once:
    """Copies each tensor once, although modules share some."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._copies: dict[int, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._copies:
            self._copies[id(tensor)] = self._copy(tensor)
        return self._copies[id(tensor)]


def _by_layer(paths: Iterable[str]) -> list[list[str]]:
    """Paths of modules by the first number in them, which is the layer's; those without one come
    first, with the first layer."""
    layers: dict[int, list[str]] = {}
    for path in paths:
        number = _LAYER.search(path)
        layers.setdefault(int(number[1]) if number else 0, []).append(path)
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
