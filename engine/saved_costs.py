"""Cost models as files: one for each model on each device."""

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from loraplex.engine.cost import CostModel, Subject
from loraplex.engine.errors import CostModelInvalid

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CostFile:
    """Where what was learned of a subject is kept. Nothing here raises: it can be learned anew."""

    folder: Path
    subject: Subject

    @property
    def path(self) -> Path:
        """The file's name is made from the subject."""
        text = f"{self.subject.model}\0{self.subject.device}"
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"

    def read(self) -> CostModel | None:
        """What was saved of this subject, by this version; None if nothing was."""
        try:
            model = CostModel.from_json(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, CostModelInvalid) as error:
            _log.warning("what was learned of step times is not used: %s: %s", self.path, error)
            return None
        if model.subject != self.subject:
            _log.warning(
                "what was learned of step times is not used: %s is of %s on %s",
                self.path,
                model.subject.model,
                model.subject.device,
            )
            return None
        return model

    def write(self, saved: bytes) -> None:
        """Keep what `CostModel.to_json` returned; who reads meanwhile finds a whole file."""
        partial = self.path.with_name(f".{self.path.name}.{uuid4().hex}.partial")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(saved)
            partial.replace(self.path)
        except OSError as error:
            _log.warning("what was learned of step times is not kept: %s", error)
