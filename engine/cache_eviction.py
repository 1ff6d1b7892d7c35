"""Which cached KV block goes when one is needed. Pure Python."""

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heappushpop
from typing import Protocol

from loraplex.engine.cached_block import CachedBlock, Shelf

_MAX_USES = 8
"""Uses that count: what was used so often and never again stays as long as this, not for ever."""
_IDLE_TURNOVERS = 4
"""Times that the pool's blocks may be filled anew before a tenant that used none is idle."""


class EvictionOrder(Protocol):
    """Chooses among blocks that nobody holds. Those with children go after these.

    Where several blocks are told of at once, they are of one sequence, the last first or the first
    first as may be.
    """

    def shelf(self, tenant: str) -> Shelf:
        """The tenant's, made if it has none; `entered` follows."""
        ...

    def entered(self, cached: CachedBlock) -> None:
        """It is new, and held."""
        ...

    def used(self, found: Sequence[CachedBlock]) -> None:
        """A request that is new has found these, and holds them."""
        ...

    def held(self, cached: CachedBlock) -> None:
        """It rested, and is held again."""
        ...

    def rested(self, rested: Sequence[CachedBlock]) -> None:
        """Nobody holds these any more."""
        ...

    def take(self, num_blocks: int) -> list[CachedBlock]:
        """Choose so many that nobody holds, each after all its children; they are gone, and their
        parents have fewer."""
        ...

    def gone(self, cached: CachedBlock) -> None:
        """It is forgotten for another reason, after all its children; its parent has one less."""
        ...


_Entry = tuple[int, int, CachedBlock]


def _entry(cached: CachedBlock, ticket: int) -> _Entry:
    """Of a block that can go now, among the leaves of its shelf."""
    cached.ticket = ticket
    return cached.used_at + min(cached.num_uses, _MAX_USES), ticket, cached


class _Tallest:
    """Finds the shelf on which most blocks rest, in amortised constant time."""

    def __init__(self) -> None:
        self._by_height: dict[int, dict[Shelf, None]] = {}
        self._height = 0

    def change(self, shelf: Shelf, by: int) -> None:
        """So many blocks more rest on it, or fewer."""
        before = shelf.num_resting
        shelf.num_resting = after = before + by
        if before:
            as_tall = self._by_height[before]
            del as_tall[shelf]
            if not as_tall:
                del self._by_height[before]
        if after:
            as_tall = self._by_height.setdefault(after, {})
            as_tall[shelf] = None
        self._height = max(self._height, after)

    def get(self) -> Shelf:
        """Of several the one that has been so tall for longest."""
        while self._height not in self._by_height:
            self._height -= 1
        return next(iter(self._by_height[self._height]))


class FairEviction:
    """Shares the cache between tenants, and keeps of each tenant's what is used again.

    A tenant loses blocks only while no other has more that rest: whoever reads a million prompts
    once fills its own share, and what others leave free. Those that have used nothing for several
    fillings of the pool lose theirs first.

    Within a tenant, leaves go by frequency with dynamic ageing ("LFU-DA",
    https://doi.org/10.1145/346000.346006): the score is the tenant's clock at the last use plus the
    number of uses, and the clock is the score that went last. So what was used f times outlives
    about f fillings of its tenant's share, where recency lets it go after one. What a block costs
    to compute does not enter: it is the same for all but for attention to what lies before.
    """

    def __init__(self, num_blocks: int) -> None:
        """`num_blocks` are all of the pool."""
        self._idle_after = _IDLE_TURNOVERS * num_blocks
        self._shelves: OrderedDict[str, Shelf] = OrderedDict()
        """By tenant, the one that has used nothing for longest first."""
        self._tallest = _Tallest()
        self._num_entered = 0
        self._num_tickets = 0

    def shelf(self, tenant: str) -> Shelf:
        """See `EvictionOrder`; so with all others."""
        shelf = self._shelves.get(tenant)
        if shelf is None:
            shelf = self._shelves[tenant] = Shelf(tenant)
        return shelf

    def entered(self, cached: CachedBlock) -> None:
        """Count it."""
        self._num_entered += 1
        shelf = cached.tree.shelf
        shelf.num_blocks += 1
        cached.used_at = shelf.clock

    def used(self, found: Sequence[CachedBlock]) -> None:
        """Count each."""
        for cached in found:
            cached.num_uses += 1
            cached.used_at = cached.tree.shelf.clock
        self._touch(found)

    def held(self, cached: CachedBlock) -> None:
        """Its entry counts no more."""
        cached.ticket = 0
        self._tallest.change(cached.tree.shelf, -1)

    def rested(self, rested: Sequence[CachedBlock]) -> None:
        """Take them; the last can go now, if nothing lies on it."""
        shelf = rested[0].tree.shelf
        self._tallest.change(shelf, len(rested))
        self._touch(rested)
        for cached in rested:
            if not cached.num_children:
                self._num_tickets += 1
                heappush(shelf.leaves, _entry(cached, self._num_tickets))
        if len(shelf.leaves) > 64 + 2 * shelf.num_resting:
            shelf.leaves = [entry for entry in shelf.leaves if entry[1] == entry[2].ticket]
            heapify(shelf.leaves)

    def take(self, num_blocks: int) -> list[CachedBlock]:
        """Those of lowest score of the tenant whose turn it is, up to half of what it has; and so
        on."""
        taken: list[CachedBlock] = []
        while len(taken) < num_blocks:
            shelf = self._loser()
            num = min(num_blocks - len(taken), (shelf.num_resting + 1) // 2)
            taken += self._take(shelf, num)
            self._removed(shelf, num, num)
        return taken

    def gone(self, cached: CachedBlock) -> None:
        """Forget it, and its entry."""
        cached.ticket = 0
        self._removed(cached.tree.shelf, 1, int(not cached.is_held))

    def _take(self, shelf: Shelf, num_blocks: int) -> list[CachedBlock]:
        """Of equal scores the sequence goes that came to rest first, from its end to its beginning:
        a parent takes over the ticket of its last child."""
        taken: list[CachedBlock] = []
        entry = heappop(shelf.leaves)
        while True:
            score, ticket, cached = entry
            bared: _Entry | None = None
            if ticket == cached.ticket:
                taken.append(cached)
                shelf.clock = max(shelf.clock, score)
                parent = cached.parent
                parent.num_children -= 1
                if not parent.num_children and isinstance(parent, CachedBlock):
                    bared = None if parent.is_held else _entry(parent, ticket)
            if len(taken) == num_blocks:
                if bared is not None:
                    heappush(shelf.leaves, bared)
                return taken
            entry = heappushpop(shelf.leaves, bared) if bared else heappop(shelf.leaves)

    def _removed(self, shelf: Shelf, num_blocks: int, num_resting: int) -> None:
        shelf.num_blocks -= num_blocks
        if num_resting:
            self._tallest.change(shelf, -num_resting)
        if not shelf.num_blocks:
            del self._shelves[shelf.tenant]

    def _loser(self) -> Shelf:
        idle_since = self._num_entered - self._idle_after
        for shelf in self._shelves.values():
            if shelf.last_used >= idle_since:
                break
            if shelf.num_resting:
                return shelf
        return self._tallest.get()

    def _touch(self, of_one_tenant: Sequence[CachedBlock]) -> None:
        if of_one_tenant:
            shelf = of_one_tenant[0].tree.shelf
            shelf.last_used = self._num_entered
            self._shelves.move_to_end(shelf.tenant)
