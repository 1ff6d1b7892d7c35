"""How large an adapter is before it is loaded: from its config and the header of its file alone."""

from collections.abc import Callable
from dataclasses import dataclass

from loraplex.adapters import fit
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.claims import claim
from loraplex.adapters.known import Known
from loraplex.adapters.layout import AdapterLayout
from loraplex.adapters.storage import AdapterHead

MAX_KNOWN = 65_536
"""Adapters whose sizes are remembered."""
MAX_HEADS = 64
"""Different configs and headers whose sizes are worth keeping; up to 1 MB each."""
RETRY_S = 5.0
"""So long after one that could not be read, nobody tries again."""


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
    """Sizes of a stored adapter, from its tensors' shapes: no pattern of the config is matched. One
    whose tensors do not fit the base model, which is told when it is loaded, counts with all that
    it brings."""
    claims, problems = claim(head.entries, head.config, base)
    if problems or not fit.have_their_shapes(head.config, claims, base):
        num_elements = sum(entry.num_elements for entry in head.entries)
        on_host = sum(entry.num_bytes for entry in head.entries)
        return AdapterSizes(num_elements * bytes_per_element, on_host, None)
    layout = AdapterLayout.of(claims, head.config, base)
    return AdapterSizes(layout.num_bytes(bytes_per_element), layout.host_bytes, layout.vocab_size)


class StoredSizes:
    """Sizes of a store's adapters by digest, each read once. Safe from any thread."""

    def __init__(self, read: Callable[[str], AdapterSizes]) -> None:
        """`read` may take long, and raise."""
        self._read = read
        self._known: Known[AdapterSizes] = Known(MAX_KNOWN, RETRY_S)

    def are_known(self, digest: str) -> bool:
        """True if `of` has nothing to read."""
        return self._known.knows(digest)

    def of(self, digest: str) -> AdapterSizes:
        """Sizes that are known, or are read now. Raises what `read` raised, for RETRY_S."""
        return self._known.of(digest, lambda: self._read(digest))

    def told(self, digest: str) -> AdapterSizes:
        """`of` for a thread that must not wait: the last answer, even if that is an old failure.
        Only what nobody has ever asked for is read."""
        return self._known.find(digest) or self.of(digest)

    def host_bytes(self, digest: str) -> int | None:
        """None where it is not known now; the load will tell."""
        try:
            sizes = self._known.find(digest)
        except Exception:  # noqa: BLE001  it is told to who asked for them
            return None
        return None if sizes is None else sizes.host_bytes
