"""Checks an uploaded adapter and names it: every tensor claimed, every field honoured, or refused.

A checkpoint is what PEFT's `save_pretrained` writes: adapter_config.json beside
adapter_model.safetensors. What its tensors are says `claims.py`, whether they fit `fit.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loraplex.adapters import fit, targets, twins
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.claims import Claims, Role, claim
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.config_reader import MAX_CONFIG_BYTES, parse
from loraplex.adapters.digest import with_profile
from loraplex.adapters.errors import (
    CheckpointInvalid,
    PatternTimeout,
    Problem,
    TensorFileInvalid,
)
from loraplex.adapters.limits import Limits
from loraplex.adapters.profile import PROFILE_FILE
from loraplex.adapters.tensor_file import TensorEntry, read_entries
from loraplex.adapters.values import Values, read_values

CONFIG_FILE = "adapter_config.json"
TENSORS_FILE = "adapter_model.safetensors"
MAX_PROBLEMS = 200
"""That one refusal tells; a file may have a hundred thousand tensors."""

PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
"""Suffixes of files that can run code when they are read."""
_NO_LIMITS = Limits()
_B = (Role.LORA_B, Role.EMBEDDING_B, Role.PARAMETER_B)


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
    warnings: tuple[str, ...] = ()
    """What is legal and yet hardly meant."""
    vocab_size: int | None = None
    """Tokens that it has; None if they are those of the base model."""


@dataclass(frozen=True, slots=True)
class Report:
    """What can be said of a checkpoint, valid or not."""

    directory: Path
    config: AdapterConfig
    digest: str
    """Empty where the files cannot be read."""
    rank: int
    num_bytes: int
    modules: tuple[str, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    vocab_size: int | None


def inspect(directory: Path, base: BaseShapes, limits: Limits = _NO_LIMITS) -> Checkpoint:
    """Check the checkpoint in a folder against the base model and compute its digest.

    Raises:
        CheckpointInvalid: lists all problems at once.
    """
    report = examine(directory, base, limits)
    if report.problems:
        raise CheckpointInvalid(report.problems)
    return Checkpoint(
        directory=directory,
        config=report.config,
        digest=report.digest,
        rank=report.rank,
        num_bytes=report.num_bytes,
        modules=report.modules,
        warnings=report.warnings,
        vocab_size=report.vocab_size,
    )


def examine(directory: Path, base: BaseShapes | None, limits: Limits = _NO_LIMITS) -> Report:
    """Check a checkpoint as far as can be: without a base model, all that needs none."""
    config, problems = read_config(directory)
    is_config_read = not problems
    entries, in_file = _read_tensors(directory, limits)
    claims, in_names = claim(entries, config, base)
    problems += [*in_file, *in_names]
    # What a config or a file asks for means nothing where it cannot be read.
    is_read = bool(entries) and is_config_read
    if is_read and base is not None:
        problems += _misfits(directory, config, claims, base)
    values = read_values(directory / TENSORS_FILE, config, entries)
    problems += values.problems
    adapted = _adapted(claims)
    rank = max((fit.rank_in_file(claims[path], path, base) for path in adapted), default=0)
    problems += limits.problems(rank, len(adapted))
    return Report(
        directory=directory,
        config=config,
        digest=values.digest if is_read and not in_file else "",
        rank=rank,
        num_bytes=sum(entry.num_bytes for entry in entries),
        modules=tuple(adapted),
        problems=_bounded(problems),
        warnings=tuple(_warnings(claims, values)) if is_read else (),
        vocab_size=None if base is None else fit.vocabulary(claims, base),
    )


def compute_digest(directory: Path) -> str:
    """Digest of a version's files as they lie there now, without asking which base they fit.

    Raises:
        CheckpointInvalid: they cannot be read as an adapter.
    """
    config, problems = read_config(directory)
    entries, found = _read_tensors(directory, _NO_LIMITS)
    values = read_values(directory / TENSORS_FILE, config, entries)
    problems += [*found, *values.problems]
    if problems:
        raise CheckpointInvalid(_bounded(problems))
    return with_profile(values.digest, read_profile(directory))


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


def _read_tensors(directory: Path, limits: Limits) -> tuple[tuple[TensorEntry, ...], list[Problem]]:
    path = directory / TENSORS_FILE
    problems = [
        Problem(file.name, "", "a pickle file can run code when read; save with safetensors")
        for file in sorted(directory.glob("*"))
        if file.name.lower().startswith("adapter_model.") and file.suffix.lower() in PICKLES
    ]
    try:
        size = path.stat().st_size
        if size > limits.max_bytes:
            reason = f"has {size} bytes; at most {limits.max_bytes} are allowed"
            return (), [*problems, Problem(TENSORS_FILE, "", reason)]
        entries = read_entries(path)
    except TensorFileInvalid as error:
        reason = str(error).removeprefix(TENSORS_FILE).lstrip(": ")
        return (), [*problems, Problem(TENSORS_FILE, "", reason)]
    except OSError as error:
        return (), [*problems, _unreadable(TENSORS_FILE, error)]
    if not entries:
        problems.append(Problem(TENSORS_FILE, "", "holds no tensors"))
    return entries, problems


def _misfits(
    directory: Path, config: AdapterConfig, claims: Claims, base: BaseShapes
) -> list[Problem]:
    try:
        problems = fit.problems(config, claims, base, targets.resolve(config, base, claims))
        if not problems:
            problems = list(twins.problems(directory / TENSORS_FILE, config, claims, base))
    except PatternTimeout as error:
        return [Problem("adapter_config.json", error.pattern[:80], "takes too long to match")]
    except (OSError, ValueError) as error:  # the file changed since its header was read
        return [Problem(TENSORS_FILE, "", f"cannot be read: {error}")]
    return problems


def _adapted(claims: Claims) -> list[str]:
    return sorted(
        path for path, roles in claims.items() if not roles.keys().isdisjoint(fit.A_ROLES)
    )


def _warnings(claims: Claims, values: Values) -> Iterator[str]:
    b = [roles[role].name for roles in claims.values() for role in _B if role in roles]
    if b and values.zero.issuperset(b):
        yield "every lora_B is zero: the pairs change nothing; was the adapter trained?"


def _bounded(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    more = len(problems) - MAX_PROBLEMS
    if more <= 0:
        return tuple(problems)
    last = Problem(TENSORS_FILE, "", f"and {more} problems more")
    return (*problems[:MAX_PROBLEMS], last)


def _unreadable(name: str, error: OSError) -> Problem:
    return Problem(name, "", f"cannot be read: {error.strerror}")
