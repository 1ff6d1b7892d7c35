"""How large an adapter is before it is loaded: from its config and the header of its file alone."""

from dataclasses import dataclass
from pathlib import Path

from loraplex.adapters import fit
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import TENSORS_FILE, read_config
from loraplex.adapters.claims import claim
from loraplex.adapters.errors import AdapterCorrupt, TensorFileInvalid
from loraplex.adapters.layout import AdapterLayout
from loraplex.adapters.tensor_file import read_entries


@dataclass(frozen=True, slots=True)
class AdapterSizes:
    """What an adapter takes, and how many tokens it has."""

    device_bytes: int
    """With weights in the dtype that is served."""
    host_bytes: int
    """With weights in the dtype of its file."""
    vocab_size: int | None
    """None if its tokens are those of the base model."""


def read_sizes(
    directory: Path, digest: str, base: BaseShapes, *, bytes_per_element: int
) -> AdapterSizes:
    """Read the sizes of a stored adapter, which lies in ``directory``. One that does not fit the
    base model, which is told when it is loaded, counts with all that it brings.

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
        num_elements = sum(entry.num_elements for entry in entries)
        on_host = sum(entry.num_bytes for entry in entries)
        return AdapterSizes(num_elements * bytes_per_element, on_host, None)
    layout = AdapterLayout.of(claims, config, base)
    return AdapterSizes(layout.num_bytes(bytes_per_element), layout.host_bytes, layout.vocab_size)
