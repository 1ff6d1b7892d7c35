"""Checks an uploaded adapter and names it: every tensor claimed, every field honoured, or refused.

A checkpoint is what PEFT's `save_pretrained` writes: adapter_config.json beside
adapter_model.safetensors, whose tensors are `base_model.model.<module>.lora_A.weight` [r, in] and
`….lora_B.weight` [out, r].
"""

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.config import MAX_CONFIG_BYTES, AdapterConfig, parse
from loraplex.adapters.digest import AdapterHash, with_profile
from loraplex.adapters.errors import CheckpointInvalid, TensorFileInvalid
from loraplex.adapters.profile import PROFILE_FILE
from loraplex.adapters.targets import ranks, targeted
from loraplex.adapters.tensor_file import TensorEntry, read_chunks, read_entries

CONFIG_FILE = "adapter_config.json"
TENSORS_FILE = "adapter_model.safetensors"
MAX_BYTES = 4 * 1024**3

_LORA_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_LISTED = 5
# dtype → numpy's type for its bits, and the mask of its exponent
_EXPONENT_BITS = MappingProxyType(
    {"F32": ("<u4", 0x7F800000), "BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00)}
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A valid adapter in a folder."""

    directory: Path
    config: AdapterConfig
    digest: str
    rank: int
    """The largest of its modules."""
    num_bytes: int
    """Tensor bytes as stored."""
    modules: tuple[str, ...]
    """Module paths that it adapts, sorted."""


@dataclass(frozen=True, slots=True)
class PairEntry:
    """The two tensors of one module in a file."""

    a: TensorEntry
    b: TensorEntry

    @property
    def rank(self) -> int:
        """First dimension of A."""
        return self.a.shape[0]


def inspect(directory: Path, base: BaseShapes) -> Checkpoint:
    """Check the checkpoint in a folder against the base model and compute its digest.

    Raises:
        CheckpointInvalid: lists all problems at once.
    """
    config, in_config = read_config(directory)
    entries, in_file = _read_tensors(directory)
    pairs, in_names = pair_up(entries)
    # What a config or a file asks for means nothing where it cannot be read.
    in_shapes = shape_problems(config, pairs, base) if entries and not in_config else []
    digest, in_values = _hash(directory, config, entries)
    problems = (*in_config, *in_file, *in_names, *in_shapes, *in_values)
    if problems:
        raise CheckpointInvalid(problems)
    return Checkpoint(
        directory=directory,
        config=config,
        digest=digest,
        rank=max(pair.rank for pair in pairs.values()),
        num_bytes=sum(entry.num_bytes for entry in entries),
        modules=tuple(sorted(pairs)),
    )


def compute_digest(directory: Path) -> str:
    """Digest of a version's files as they lie there now, without asking which base they fit.

    Raises:
        CheckpointInvalid: they cannot be read as an adapter.
    """
    config, problems = read_config(directory)
    entries, found = _read_tensors(directory)
    digest, unfit = _hash(directory, config, entries)
    if problems + found + unfit:
        raise CheckpointInvalid((*problems, *found, *unfit))
    return with_profile(digest, read_profile(directory))


def read_profile(directory: Path) -> bytes | None:
    """What a stored version keeps of its profile, as it lies there."""
    file = directory / PROFILE_FILE
    return file.read_bytes() if file.is_file() else None


def read_config(directory: Path) -> tuple[AdapterConfig, list[str]]:
    """Read the config file and the reasons to refuse it."""
    try:
        with (directory / CONFIG_FILE).open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        return AdapterConfig(), [f"{CONFIG_FILE} cannot be read: {error.strerror}"]
    if len(data) > MAX_CONFIG_BYTES:
        return AdapterConfig(), [f"{CONFIG_FILE} is larger than {MAX_CONFIG_BYTES} bytes"]
    parsed = parse(data)
    return parsed.config, list(parsed.problems)


def pair_up(entries: tuple[TensorEntry, ...]) -> tuple[dict[str, PairEntry], list[str]]:
    """Match A with B by module; whatever is left over is a problem."""
    sides: dict[str, dict[str, TensorEntry]] = {"A": {}, "B": {}}
    unclaimed = set()
    for entry in entries:
        name = _LORA_NAME.fullmatch(entry.name)
        if name is None:
            unclaimed.add(entry.name)
        else:
            sides[name["side"]][name["module"]] = entry
    a, b = sides["A"], sides["B"]
    copies = {name for name in unclaimed if name.endswith(".base_layer.weight")}
    problems = [
        *_listed("not a tensor of a LoRA pair that is served", unclaimed - copies),
        *_listed("a copy of a base weight; save with save_embedding_layers=False", copies),
        *_listed("has lora_A but no lora_B", a.keys() - b.keys()),
        *_listed("has lora_B but no lora_A", b.keys() - a.keys()),
    ]
    return {module: PairEntry(a[module], b[module]) for module in a if module in b}, problems


def _read_tensors(directory: Path) -> tuple[tuple[TensorEntry, ...], list[str]]:
    path = directory / TENSORS_FILE
    problems = [
        f"{file.name} is a pickle file, which can run code when read; save with safetensors"
        for file in sorted(directory.glob("adapter_model.*"))
        if file.suffix in _PICKLES
    ]
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            return (), [*problems, f"{TENSORS_FILE} has {size} bytes; at most {MAX_BYTES} fit"]
        entries = read_entries(path)
    except TensorFileInvalid as error:
        return (), [*problems, str(error)]
    except OSError as error:
        return (), [*problems, f"{TENSORS_FILE} cannot be read: {error.strerror}"]
    if not entries:
        problems.append(f"{TENSORS_FILE} holds no tensors")
    return entries, problems


def shape_problems(
    config: AdapterConfig, pairs: Mapping[str, PairEntry], base: BaseShapes
) -> list[str]:
    """Reasons why these pairs, as this config places them, are no adapter of the base model."""
    expected = targeted(config, base)
    rank_of = ranks(config, pairs)
    problems: list[str] = []
    for module, pair in sorted(pairs.items()):
        problems += _pair_problems(module, pair, rank_of[module], base)
    linears, embeddings = base.linears.keys(), base.embeddings.keys()
    problems += _listed(
        "targeted by the config but not in the file", (expected & linears) - pairs.keys()
    )
    problems += _listed(
        "in the file but not targeted by the config", (pairs.keys() & linears) - expected
    )
    problems += _listed(
        "an embedding, where LoRA is not served", (expected | pairs.keys()) & embeddings
    )
    problems += _listed(
        "not a linear layer of the base model that sees every token (experts do not)",
        pairs.keys() - linears - embeddings,
    )
    return problems


def _pair_problems(module: str, pair: PairEntry, rank: int, base: BaseShapes) -> Iterator[str]:
    if module not in base.linears:
        return
    out_features, in_features = base.linears[module]
    for entry, shape in ((pair.a, (rank, in_features)), (pair.b, (out_features, rank))):
        if entry.shape != shape:
            yield (
                f"tensor {entry.name} has shape {entry.shape}; the base model and rank {rank} "
                f"need {shape}"
            )


def _listed(what: str, found: Set[str]) -> list[str]:
    """One problem for many names, of which it shows the first few."""
    if not found:
        return []
    names = [name[:200] for name in sorted(found)]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return [f"{', '.join(names[:_LISTED])}{more}: {what}"]


def _hash(
    directory: Path, config: AdapterConfig, entries: tuple[TensorEntry, ...]
) -> tuple[str, list[str]]:
    """Read every byte once: the digest, and which tensors have values that cannot be served."""
    adapter_hash = AdapterHash(config)
    problems: list[str] = []
    try:
        for entry in entries:
            if entry.dtype not in _EXPONENT_BITS:
                problems.append(f"tensor {entry.name[:200]} is {entry.dtype}, not F32, BF16 or F16")
            adapter_hash.start_tensor(entry)
            finite = True
            for chunk in read_chunks(directory / TENSORS_FILE, entry):
                adapter_hash.add_bytes(chunk)
                finite = finite and _is_finite(chunk, entry.dtype)
            if not finite:
                problems.append(f"tensor {entry.name[:200]} holds an infinity or NaN")
    except (OSError, TensorFileInvalid) as error:
        problems.append(f"{TENSORS_FILE} cannot be read: {error}")
    return adapter_hash.hexdigest(), problems


def _is_finite(chunk: bytes, dtype: str) -> bool:
    """An infinity or NaN is a value whose exponent bits are all set (IEEE 754)."""
    if dtype not in _EXPONENT_BITS:
        return True
    word, mask = _EXPONENT_BITS[dtype]
    return not bool(((np.frombuffer(chunk, word) & mask) == mask).any())
