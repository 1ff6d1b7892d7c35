"""Least recently used first: what the cache's order of eviction is compared with."""

from collections.abc import Sequence

from loraplex.engine.cached_block import CachedBlock, Shelf


class LeastRecentlyUsed:
    """An `EvictionOrder`: the leaf that came to rest longest ago goes first."""

    def __init__(self) -> None:
        self._rested_at: dict[CachedBlock, int] = {}
        self._num_rested = 0

    def shelf(self, tenant: str) -> Shelf:
        return Shelf(tenant)

    def entered(self, cached: CachedBlock) -> None:
        pass

    def used(self, found: Sequence[CachedBlock]) -> None:
        pass

    def held(self, cached: CachedBlock) -> None:
        del self._rested_at[cached]

    def rested(self, rested: Sequence[CachedBlock]) -> None:
        for cached in reversed(rested):
            self._num_rested += 1
            self._rested_at[cached] = self._num_rested

    def take(self, num_blocks: int) -> list[CachedBlock]:
        taken = []
        for _ in range(num_blocks):
            leaves = [cached for cached in self._rested_at if not cached.num_children]
            oldest = min(leaves, key=self._rested_at.__getitem__)
            del self._rested_at[oldest]
            oldest.parent.num_children -= 1
            taken.append(oldest)
        return taken

    def gone(self, cached: CachedBlock) -> None:
        self._rested_at.pop(cached, None)
