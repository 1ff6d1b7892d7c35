"""How large an adapter is before it is loaded: from its config and the header of its file alone."""

from dataclasses import dataclass

from loraplex.adapters import fit
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.claims import claim
from loraplex.adapters.layout import AdapterLayout
from loraplex.adapters.storage import AdapterHead


@dataclass(frozen=True, slots=True)
class AdapterSizes:
    """What an adapter takes, and how many tokens it has."""

    device_bytes: int
    """With weights in the dtype that is served."""
    host_bytes: int
    """With weights in the dtype of its file."""
    vocab_size: int | None
    """None if its tokens are those of the base model."""


NO_SIZES = AdapterSizes(0, 0, None)
"""Of the base model, which needs no adapter."""


def sizes_of_head(head: AdapterHead, base: BaseShapes, *, bytes_per_element: int) -> AdapterSizes:
    """Sizes of a stored adapter. One that does not fit the base model, which is told when it is
    loaded, counts with all that it brings."""
    claims, problems = claim(head.entries, head.config, base)
    if problems or fit.problems(head.config, claims, base):
        num_elements = sum(entry.num_elements for entry in head.entries)
        on_host = sum(entry.num_bytes for entry in head.entries)
        return AdapterSizes(num_elements * bytes_per_element, on_host, None)
    layout = AdapterLayout.of(claims, head.config, base)
    return AdapterSizes(layout.num_bytes(bytes_per_element), layout.host_bytes, layout.vocab_size)
