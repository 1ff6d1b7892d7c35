"""A stored adapter as tensors, at its true rank."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from loraplex.adapters.assembly import Assembly
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import TENSORS_FILE, read_config, read_profile
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.digest import AdapterHash, with_profile
from loraplex.adapters.effects import Assembled, BaseWeights, Copy, LoraPair, ModuleEffect
from loraplex.adapters.errors import AdapterCorrupt, AdapterMismatch, TensorFileInvalid
from loraplex.adapters.experts import ExpertPairs
from loraplex.adapters.layout import AdapterLayout
from loraplex.adapters.outline import Header, Outline, Outlines
from loraplex.adapters.own_pages import own_pages
from loraplex.adapters.packed_pairs import PackedPairs
from loraplex.adapters.profile import AddedToken, Profile, decode
from loraplex.adapters.shared_pages import HostPages
from loraplex.adapters.storage import Store
from loraplex.adapters.tensor_file import header_bytes
from loraplex.kernels.segments import LoraTable

_DTYPES = MappingProxyType(
    {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16},
)
_PLAIN = HostPages()


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

    outline: Outline
    pairs: PackedPairs
    """Its low-rank updates of linear layers, but for those in `modules`."""
    modules: Mapping[str, Assembled]
    """What else it does, by module path. All of it is pinned if the device is a GPU."""
    profile: Profile = field(default_factory=Profile)
    """What is kept of it."""

    @property
    def layout(self) -> AdapterLayout:
        """What it keeps of each module."""
        return self.outline.layout

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return self.outline.host_bytes

    @property
    def shared_fd(self) -> int | None:
        """A file that has all of `pairs.data` and nothing else, for other processes to map; open
        while this adapter is held. None if it is not shared."""
        shared = self.pairs.shared
        return None if shared is None else shared.fd


def read(
    store: Store,
    digest: str,
    base: BaseShapes,
    base_weights: BaseWeights,
    *,
    pages: HostPages = _PLAIN,
    transposes_b: bool = False,
    outlines: Outlines | None = None,
) -> VerifiedAdapter:
    """Read an adapter, and verify that its bytes are those of the digest. It lies in such `pages`,
    of which only low-rank pairs of linear layers are ever shared; `transposes_b` lays these out as
    the compiled kernel of CPUs reads them.

    It was checked when it was stored, but the base model may be another since, of the same name;
    and what it has of the base's weights is compared with them here for the first time.
    `outlines`, which are of ``base``, keep what follows from its shapes, and what its patterns come
    to, which may cost seconds of a processor.

    Raises:
        AdapterMissing: the store does not have it.
        AdapterCorrupt: its files are not what was stored.
        AdapterMismatch: it does not fit ``base`` or ``base_weights``.
        PatternTimeout: a pattern of its config was not matched in time.
    """
    outlines = outlines or Outlines()
    directory = store.open(digest)
    config, problems = read_config(directory)
    if problems:
        raise AdapterCorrupt(digest, "; ".join(map(str, problems)))
    try:
        header, data = _read(directory / TENSORS_FILE, outlines)
        kept = read_profile(directory)
    except (OSError, TensorFileInvalid) as error:
        raise AdapterCorrupt(digest, str(error)) from error
    found = with_profile(_digest(config, header, data), kept)
    if found != digest:
        raise AdapterCorrupt(digest, f"its files have digest {found}")
    outline = outlines.outline(header, config, base)
    if not isinstance(outline, Outline):
        raise AdapterMismatch(digest, outline)
    tensors = _views(outline, header, data)
    assembly = Assembly(outline.layout, tensors, outline.scale_of, base_weights)
    modules = assembly.modules(outline.others)
    if assembly.problems:
        raise AdapterMismatch(digest, tuple(assembly.problems))
    numbers = _numbers(outline.pairs.dtype, data)
    pairs = PackedPairs.gathered(outline.pairs, numbers, transposes_b=transposes_b, pages=pages)
    others = _apart(modules, pairs, torch.Tensor.pin_memory if pages.pins else torch.clone)
    return VerifiedAdapter(outline, pairs, others, decode(kept))


def _apart(
    modules: Mapping[str, Assembled], pairs: PackedPairs, copy: Copy
) -> Mapping[str, Assembled]:
    """Copy what is not packed, so that nothing holds all of the file."""
    once = Once(copy)
    loose = {p: replace(m, pair=None) if p in pairs else m for p, m in modules.items()}
    return MappingProxyType({path: module.copied(once, once) for path, module in loose.items()})


class Once:
    """Copies each tensor once, although modules share some."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._copies: dict[int, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the copy of ``tensor``."""
        if id(tensor) not in self._copies:
            self._copies[id(tensor)] = self._copy(tensor)
        return self._copies[id(tensor)]


def _read(path: Path, outlines: Outlines) -> tuple[Header, Tensor]:
    """Read a file once, for the digest and the tensors alike: what is used was verified. Return
    what its header tells, and the bytes of all tensors, ``[bytes]`` uint8."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        length = header_bytes(path.name, file.read(8), size)
        header = bytearray(length)
        _fill(memoryview(header), file, path.name)
        found = outlines.header(path.name, bytes(header), size)
        data = own_pages(size - found.data_start, torch.uint8)
        _fill(data.numpy().data, file, path.name)
    for entry in found.entries:
        if entry.dtype not in _DTYPES:
            raise TensorFileInvalid(f"tensor {entry.name} is {entry.dtype}")
    return found, data


def _fill(memory: memoryview, file: FileIO, name: str) -> None:
    while memory:
        num_bytes = file.readinto(memory)
        if not num_bytes:
            raise TensorFileInvalid(f"{name} shrank while it was read")
        memory = memory[num_bytes:]


def _digest(config: AdapterConfig, header: Header, data: Tensor) -> str:
    adapter_hash, memory = AdapterHash(config), data.numpy().data
    adapter_hash.add_tensors(
        (prefix, memory[(start := entry.start - header.data_start) : start + entry.num_bytes])
        for prefix, entry in zip(header.prefixes, header.entries, strict=True)
    )
    return adapter_hash.hexdigest()


def _numbers(dtype: str, data: Tensor) -> Tensor:
    """``data`` in whole numbers of a dtype; as it is if there is none."""
    if not dtype:
        return data
    itemsize = _DTYPES[dtype].itemsize
    return data[: len(data) // itemsize * itemsize].view(_DTYPES[dtype])


def _views(outline: Outline, header: Header, data: Tensor) -> dict[str, Tensor]:
    """By name, the tensors of modules of which not all is packed."""
    views = {}
    for path in outline.others:
        for entry in outline.layout.modules[path].roles.values():
            start = entry.start - header.data_start
            values = data[start : start + entry.num_bytes]
            dtype = _DTYPES[entry.dtype]
            if start % dtype.itemsize:
                values = values.clone()  # it lies where no number of its dtype may
            views[entry.name] = values.view(dtype).view(entry.shape)
    return views
