"""KV blocks that are known by the tokens they hold, and by what acted on them."""

from dataclasses import dataclass, field
from typing import NamedTuple


class Namespace(NamedTuple):
    """Within which keys and values of equal tokens are equal, and may be seen to be."""

    tenant: str
    """Of base-model prompts too: nobody learns from latency what another tenant has asked."""
    digest: str | None
    """Of the adapter; None is the base model."""
    start: int = 0
    """Position from which on the adapter acts; what lies before is the base model's."""

    @property
    def root(self) -> "Namespace":
        """The namespace of the tree that its sequences lie in: the base model's, where they begin
        with tokens of that."""
        return Namespace(self.tenant, None) if self.start else self


class Activating(NamedTuple):
    """A block in which an adapter begins to act."""

    token_ids: bytes
    digest: str
    """Of the adapter."""
    start: int
    """Tokens of the block that lie before that."""


BlockKey = bytes | Activating
"""What tells a block from others behind the same block: its tokens, and what begins in it."""


@dataclass(slots=True, eq=False)
class Shelf:
    """What one tenant has in the cache; for whoever decides what goes."""

    tenant: str
    num_blocks: int = 0
    num_resting: int = 0
    """Of those, blocks that nobody holds."""
    last_used: int = 0
    """When, in blocks that were entered by then."""
    clock: int = 0
    """The score that went last; see `FairEviction`."""
    leaves: list[tuple[int, int, "CachedBlock"]] = field(default_factory=list)
    """A heap by score; an entry counts if its number is the block's ticket."""


@dataclass(slots=True, eq=False)
class Tree:
    """The token sequences of one namespace."""

    number: int
    """Unique among trees and blocks, for all time."""
    namespace: Namespace
    """The root of those whose sequences lie here."""
    shelf: Shelf
    num_children: int = 0
    blocks: dict[int, "CachedBlock"] = field(default_factory=dict)
    """All that it holds, by `block`; what lies behind another comes later."""
    version: int = 0
    """Changes with what it holds."""


@dataclass(slots=True, eq=False)
class CachedBlock:
    """One full KV block, known by what lies before it and its own key."""

    number: int
    """Unique among trees and blocks, for all time."""
    tree: Tree
    parent: "CachedBlock | Tree"
    """What lies before it; the tree, where a sequence begins."""
    key: BlockKey
    block: int
    used_at: int
    """Its shelf's clock when it was used last."""
    num_uses: int = 1
    """Requests that computed or found it."""
    num_children: int = 0
    is_held: bool = True
    """True while a block table has it."""
    ticket: int = 0
    """Of its entry among the leaves of its shelf; 0 while it has none."""
