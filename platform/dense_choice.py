"""Who computes dense layers, as it was measured once: the same at each start, so that a seed gives
the same bits."""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from loraplex.kernels import linear_choice
from loraplex.kernels.linear import Packer
from loraplex.kernels.linear_choice import Choose, fastest
from loraplex.platform.processor import cpu_name

_log = logging.getLogger(__name__)

_SOURCES = Path(linear_choice.__file__).with_name("cpu")
"""Of what is compiled."""


@dataclass(frozen=True, slots=True)
class KeptChoice:
    """Chooses once for each model on each machine, and keeps that in a folder, as a file for each.

    Nothing here raises: what cannot be kept is measured again at the next start.
    """

    folder: Path
    """May be shared, by workers and machines."""
    choose: Choose = fastest

    def __call__(self, packers: Sequence[Packer], weights: Sequence[Tensor]) -> Packer:
        """Pick what was picked before, or else by ``choose``; see `Choose`."""
        if len(packers) == 1 or not weights:
            return packers[0]
        kept = _Kept.of(self.folder, packers, weights)
        chosen = kept.read()
        if chosen is None:
            return kept.write(self.choose(packers, weights))
        _log.info(
            "dense layers are computed by %s as it was measured before: %s", chosen.name, kept.path
        )
        return chosen


@dataclass(frozen=True, slots=True)
class _Kept:
    path: Path
    subject: str
    packers: Sequence[Packer]

    @classmethod
    def of(cls, folder: Path, packers: Sequence[Packer], weights: Sequence[Tensor]) -> "_Kept":
        subject = _subject(packers, weights)
        return cls(folder / f"dense-{_digest(subject.encode())}.json", subject, packers)

    def read(self) -> Packer | None:
        """Return who was chosen; None if nobody was, or the file is not of this subject."""
        try:
            found = json.loads(self.path.read_bytes())
            if found["subject"] != self.subject:
                return None
            return next((each for each in self.packers if each.name == found["chosen"]), None)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, chosen: Packer) -> Packer:
        """Keep it, and return it, or who was kept meanwhile by a worker that started with this one:
        so that both compute alike."""
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with TemporaryDirectory(dir=folder) as made:
                whole = Path(made) / self.path.name
                whole.write_text(json.dumps({"subject": self.subject, "chosen": chosen.name}))
                return self._put(whole) or chosen
        except OSError as error:
            _log.warning("who computes dense layers is not kept: %s", error)
        return chosen

    def _put(self, whole: Path) -> Packer | None:
        try:
            os.link(whole, self.path)
        except OSError:  # it is there already, or the file system knows no links
            first = self.read()
            if first is not None:
                return first
            whole.replace(self.path)
        return None


def _subject(packers: Sequence[Packer], weights: Sequence[Tensor]) -> str:
    """What the times depend on: the weights, who competes, the machine, the code."""
    shapes = repr([tuple(weight.shape) for weight in weights])
    sources = b"\0".join(path.read_bytes() for path in sorted(_SOURCES.iterdir()))
    return (
        f"{weights[0].dtype} (shapes {_digest(shapes.encode())}) by "
        f"{', '.join(packer.name for packer in packers)} on {cpu_name()} "
        f"({torch.backends.cpu.get_cpu_capability()}), {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, sources {_digest(sources)}"
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
