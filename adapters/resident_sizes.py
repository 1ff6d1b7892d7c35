"""How large an adapter is before it is loaded: from its config and the header of its file alone."""

from dataclasses import dataclass
from pathlib import Path

from loraplex.adapters import fit
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import TENSORS_FILE, read_config
from loraplex.adapters.claims import claim
from loraplex.adapters.errors import AdapterCorrupt, TensorFileInvalid
from loraplex.adapters.layout import AdapterLayout
from loraplex.adapters.storage import AdapterSizes
from loraplex.adapters.tensor_file import read_entries


@dataclass(frozen=True, slots=True)
class ResidentSizes:
    """What an adapter takes in memory, and how many tokens it has."""

    device_bytes: int
    """With weights in the dtype that is served."""
    host_bytes: int
    """With weights in the dtype of its file."""
    vocab_size: int | None
    """None if its tokens are those of the base model."""

    @classmethod
    def estimated(cls, stored: AdapterSizes, bytes_per_element: int) -> "ResidentSizes":
        """Of an adapter of which nothing is known but how much it has stored."""
        return cls(stored.num_elements * bytes_per_element, stored.num_bytes, None)

    @classmethod
    def read(
        cls, directory: Path, digest: str, base: BaseShapes, bytes_per_element: int
    ) -> "ResidentSizes":
        """Read those of the adapter in ``directory``. One that does not fit the base model, which
        is told when it is loaded, counts with all that it has stored.

        Raises:
            AdapterCorrupt: its files cannot be read.
        """
        config, problems = read_config(directory)
        if problems:
            raise AdapterCorrupt(digest, "; ".join(map(str, problems)))
        try:
            entries = read_entries(directory / TENSORS_FILE)
        except (OSError, TensorFileInvalid) as error:
            raise AdapterCorrupt(digest, str(error)) from error
        claims, problems = claim(entries, config, base)
        if problems or fit.problems(config, claims, base):
            stored = AdapterSizes(
                sum(entry.num_elements for entry in entries),
                sum(entry.num_bytes for entry in entries),
            )
            return cls.estimated(stored, bytes_per_element)
        layout = AdapterLayout.of(claims, config, base)
        return cls(layout.num_bytes(bytes_per_element), layout.host_bytes, layout.vocab_size)
