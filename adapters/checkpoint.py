"""Checks an uploaded adapter and names it: every tensor claimed, every field honoured, or refused.

A checkpoint is what PEFT's `save_pretrained` writes: adapter_config.json beside
adapter_model.safetensors. What its tensors are says `claims.py`, whether they fit `fit.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from loraplex.adapters import fit, targets
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.claims import Claims, Role, claim
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.config_reader import MAX_CONFIG_BYTES, parse
from loraplex.adapters.digest import AdapterHash, with_profile
from loraplex.adapters.errors import CheckpointInvalid, Problem, TensorFileInvalid
from loraplex.adapters.profile import PROFILE_FILE
from loraplex.adapters.tensor_file import TensorEntry, read_chunks, read_entries

CONFIG_FILE = "adapter_config.json"
TENSORS_FILE = "adapter_model.safetensors"
MAX_BYTES = 4 * 1024**3

_PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
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
    """Paths of modules and parameters that it adapts, sorted."""


def inspect(directory: Path, base: BaseShapes) -> Checkpoint:
    """Check the checkpoint in a folder against the base model and compute its digest.

    Raises:
        CheckpointInvalid: lists all problems at once.
    """
    config, in_config = read_config(directory)
    entries, in_file = _read_tensors(directory)
    claims, in_names = claim(entries, config, base)
    # What a config or a file asks for means nothing where it cannot be read.
    in_shapes = fit.problems(config, claims, base) if entries and not in_config else []
    digest, in_values = _hash(directory, config, entries)
    problems = (*in_config, *in_file, *in_names, *in_shapes, *in_values)
    if problems:
        raise CheckpointInvalid(problems)
    adapted = _adapted(claims)
    return Checkpoint(
        directory=directory,
        config=config,
        digest=digest,
        rank=max(targets.ranks(config, adapted).values()),
        num_bytes=sum(entry.num_bytes for entry in entries),
        modules=tuple(adapted),
    )


def _adapted(claims: Claims) -> list[str]:
    pairs = {Role.LORA_A, Role.EMBEDDING_A, Role.PARAMETER_A}
    return sorted(path for path, roles in claims.items() if pairs & roles.keys())


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


def read_config(directory: Path) -> tuple[AdapterConfig, list[Problem]]:
    """Read the config file and the reasons to refuse it."""
    try:
        with (directory / CONFIG_FILE).open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        return AdapterConfig(), [_unreadable(CONFIG_FILE, error)]
    if len(data) > MAX_CONFIG_BYTES:
        return AdapterConfig(), [
            Problem(CONFIG_FILE, "", f"is larger than {MAX_CONFIG_BYTES} bytes")
        ]
    parsed = parse(data)
    return parsed.config, list(parsed.problems)


def _read_tensors(directory: Path) -> tuple[tuple[TensorEntry, ...], list[Problem]]:
    path = directory / TENSORS_FILE
    problems = [
        Problem(file.name, "", "a pickle file can run code when read; save with safetensors")
        for file in sorted(directory.glob("adapter_model.*"))
        if file.suffix in _PICKLES
    ]
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            reason = f"has {size} bytes; at most {MAX_BYTES} fit"
            return (), [*problems, Problem(TENSORS_FILE, "", reason)]
        entries = read_entries(path)
    except TensorFileInvalid as error:
        return (), [*problems, Problem(TENSORS_FILE, "", str(error))]
    except OSError as error:
        return (), [*problems, _unreadable(TENSORS_FILE, error)]
    if not entries:
        problems.append(Problem(TENSORS_FILE, "", "holds no tensors"))
    return entries, problems


def _hash(
    directory: Path, config: AdapterConfig, entries: tuple[TensorEntry, ...]
) -> tuple[str, list[Problem]]:
    """Read every byte once: the digest, and which tensors have values that cannot be served."""
    adapter_hash = AdapterHash(config)
    problems: list[Problem] = []
    try:
        for entry in entries:
            if entry.dtype not in _EXPONENT_BITS:
                reason = "only F32, BF16 and F16 are served"
                problems.append(Problem(entry.name[:200], entry.dtype, reason))
            adapter_hash.start_tensor(entry)
            finite = True
            for chunk in read_chunks(directory / TENSORS_FILE, entry):
                adapter_hash.add_bytes(chunk)
                finite = finite and _is_finite(chunk, entry.dtype)
            if not finite:
                problems.append(Problem(entry.name[:200], "", "holds an infinity or NaN"))
    except (OSError, TensorFileInvalid) as error:
        problems.append(Problem(TENSORS_FILE, "", f"cannot be read: {error}"))
    return adapter_hash.hexdigest(), problems


def _unreadable(name: str, error: OSError) -> Problem:
    return Problem(name, "", f"cannot be read: {error.strerror}")


def _is_finite(chunk: bytes, dtype: str) -> bool:
    """An infinity or NaN is a value whose exponent bits are all set (IEEE 754)."""
    if dtype not in _EXPONENT_BITS:
        return True
    word, mask = _EXPONENT_BITS[dtype]
    return not bool(((np.frombuffer(chunk, word) & mask) == mask).any())
