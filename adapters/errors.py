"""Errors of adapters.

AdapterError
├── CheckpointInvalid   an upload is refused; all its problems at once
├── AdapterMissing      the store holds no adapter of this digest
├── AdapterCorrupt      a stored adapter is not what its digest says
├── AdapterMismatch     a stored adapter does not fit the base model that is served
├── PatternTimeout      a regular expression takes too long to match
├── BaseUnreadable      the base model's folder cannot be read
├── TensorFileInvalid   a safetensors file breaks its format, and where
└── ResidencyViolation  residency was driven against its rules: a bug of the caller
"""

from collections.abc import Sequence
from typing import NamedTuple, Self


class _Fields(NamedTuple):
    field: str
    """A field of the config, a tensor, a module or a file."""
    value: str
    """What is there, as JSON or Python writes it; empty where that says nothing."""
    reason: str
    """What is wrong with it, and the remedy where there is one."""


class Problem(_Fields):
    """One reason to refuse a checkpoint."""

    __slots__ = ()

    def __new__(cls, field: str, value: str, reason: str) -> Self:
        """Take texts that may hold half of a surrogate pair, which is escaped."""
        return super().__new__(cls, *map(_encodable, (field, value, reason)))

    def __str__(self) -> str:
        return (
            f"{self.field} is {self.value}: {self.reason}"
            if self.value
            else (f"{self.field}: {self.reason}")
        )


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def told(problems: Sequence[Problem]) -> dict[str, object]:
    """What clients read of a refusal: texts for people and, as `details`, fields for programs."""
    if not problems:
        return {}
    return {
        "problems": [str(problem) for problem in problems],
        "details": [problem._asdict() for problem in problems],
    }


class AdapterError(Exception):
    """Root of all errors that adapters raise."""


class CheckpointInvalid(AdapterError):
    """A checkpoint cannot be served as it is; `problems` names every reason."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("the adapter is refused: " + "; ".join(map(str, problems)))
        self.problems = problems


class AdapterMissing(AdapterError):
    """No adapter of this digest is stored."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"no adapter {digest[:80]!r} is stored; upload it first")


class AdapterCorrupt(AdapterError):
    """A stored adapter differs from what was stored under its digest."""

    def __init__(self, digest: str, reason: str) -> None:
        super().__init__(f"stored adapter {digest} is corrupt ({reason}); upload it again")


class AdapterMismatch(AdapterError):
    """A stored adapter is whole, but was made for another base model than the one served now."""

    def __init__(self, digest: str, problems: tuple[Problem, ...]) -> None:
        more = f"; and {len(problems) - 3} more reasons" if len(problems) > 3 else ""
        super().__init__(
            f"adapter {digest} does not fit the base model that is served now: "
            f"{'; '.join(map(str, problems[:3]))}{more}. "
            "Publish a version that was trained on this base model"
        )
        self.problems = problems


class PatternTimeout(AdapterError):
    """A regular expression of a config was not matched in time."""

    def __init__(self, pattern: str) -> None:
        super().__init__(f"matching {pattern[:200]!r} takes too long; use simpler patterns")
        self.pattern = pattern


class BaseUnreadable(AdapterError):
    """The base model's folder is missing, incomplete or corrupt."""


class TensorFileInvalid(AdapterError):
    """A file is not well-formed safetensors; the message says in which respect."""


class ResidencyViolation(AdapterError):
    """A transition that the state machine does not have."""
