"""The pool of KV blocks: who holds which, and which are kept for what they hold."""

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest

from loraplex.engine.prefix_cache import PrefixCache


class BlockPool:
    """Blocks 0 … num_blocks − 1, each free; or held by one block table, or by several that share
    it; or cached: known by its tokens, held by nobody, and given up when a block is needed.

    Free and cached ones may be lent: then they are none of the pool's until it takes them back.

    Invariant: free + held + cached = num_blocks, checked by `check`. A shared block is counted
    once; when its last holder has given it back it is cached if the cache knows it, else free.
    """

    def __init__(self, num_blocks: int, block_size: int, cache: PrefixCache | None = None) -> None:
        self._num_all = num_blocks
        self._lent: list[int] = []
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_holders = [0] * num_blocks
        self._cache = cache

    @property
    def num_blocks(self) -> int:
        """Blocks that the pool has: all but those that are lent."""
        return self._num_all - len(self._lent)

    @property
    def num_lent(self) -> int:
        """Blocks whose memory others use."""
        return len(self._lent)

    @property
    def num_cached(self) -> int:
        """Blocks that are cached."""
        return 0 if self._cache is None else self._cache.num_resting

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now: free ones and cached ones."""
        return len(self._free) + self.num_cached

    def free(self) -> list[int]:
        """Blocks whose content means nothing: they are neither held nor cached."""
        return [*self._free]

    def num_free_beside(self, blocks: Sequence[int]) -> int:
        """The same, once these blocks are held, which are held or cached."""
        return self.num_free - (len(blocks) - self.num_held(blocks))

    def num_held(self, blocks: Sequence[int]) -> int:
        """Of blocks with which a sequence begins: those that are held. The others are cached."""
        num_held = len(blocks)
        while num_held and not self._num_holders[blocks[num_held - 1]]:
            num_held -= 1  # those that are held come first: see `PrefixCache`
        return num_held

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` positions."""
        return -(-num_tokens // self.block_size)

    def missing(self, block_table: Sequence[int], num_tokens: int) -> int:
        """Blocks that `block_table` lacks to cover `num_tokens` positions."""
        return max(0, self.blocks_for(num_tokens) - len(block_table))

    def extend(self, block_table: list[int], num_tokens: int) -> None:
        """Grow `block_table` in place to cover `num_tokens`; needs `missing` free blocks."""
        num_missing = self.missing(block_table, num_tokens)
        if num_missing > len(self._free):
            self._evict(num_missing - len(self._free))
        for _ in range(num_missing):
            block = self._free.pop()
            self._num_holders[block] = 1
            block_table.append(block)

    def grow(self, block_tables: Sequence[list[int]]) -> list[int]:
        """Extend each table by one block in place; needs as many free blocks. Return the blocks."""
        num_missing = len(block_tables) - len(self._free)
        if num_missing > 0:
            self._evict(num_missing)
        blocks = [self._free.pop() for _ in block_tables]
        for block, block_table in zip(blocks, block_tables, strict=True):
            self._num_holders[block] = 1
            block_table.append(block)
        return blocks

    def share(self, block_table: list[int], blocks: Sequence[int]) -> None:
        """Append blocks to `block_table` in place that are cached, or that others hold too."""
        for block in blocks:
            if not self._num_holders[block]:
                assert self._cache is not None, "a KV block is shared that nobody holds"
                self._cache.hold(block)
            self._num_holders[block] += 1
            block_table.append(block)

    def replace(self, block_table: list[int], index: int, block: int) -> None:
        """Hold in a place of `block_table` a block that is cached or held, instead of its own."""
        replaced = block_table[index]
        taken: list[int] = []
        self.share(taken, [block])
        block_table[index] = block
        self._give_back([replaced])

    def release(self, block_table: list[int]) -> None:
        """Give back all blocks of `block_table` and empty it in place."""
        self._give_back(block_table)
        block_table.clear()

    def reclaim(self, blocks: Sequence[int]) -> None:
        """Take blocks that the cache has forgotten, and that nobody holds."""
        self._free += blocks

    def lend(self, num_blocks: int) -> list[int]:
        """Give up so many blocks that nobody holds, and return them; needs as many in `num_free`.
        Of the free ones those go that lie last, since they were used least."""
        if num_blocks > len(self._free):
            self._evict(num_blocks - len(self._free))
        lent = nlargest(num_blocks, self._free)
        self._lent += lent
        gone = set(lent)
        self._free = [block for block in self._free if block not in gone]
        return lent

    def take_back(self, num_blocks: int) -> None:
        """Have so many blocks again, at most those that are lent; they are free, and used last."""
        back = self._lent[len(self._lent) - num_blocks :]
        del self._lent[len(self._lent) - num_blocks :]
        self._free[:0] = back

    def check(self, block_tables: list[list[int]]) -> None:
        """Assert that the tables hold exactly the held blocks, as often as was counted."""
        for table in block_tables:
            assert len(table) == len(set(table)), "a KV block is twice in one table"
        in_tables = Counter(block for table in block_tables for block in table)
        counted = {block: num for block, num in enumerate(self._num_holders) if num}
        assert in_tables == counted, "held KV blocks and block tables differ"
        assert in_tables.keys().isdisjoint(self._free), "a KV block is free and held"
        if self._cache is not None:
            self._cache.check(in_tables)
        assert in_tables.keys().isdisjoint(self._lent), "a KV block is lent and held"
        assert len(in_tables) + self.num_free == self.num_blocks, "a KV block is lost"

    def _evict(self, num_blocks: int) -> None:
        """A few more than are needed, since to choose many at once costs less."""
        assert self._cache is not None, "too few KV blocks are free"
        ahead = min(self.num_blocks // 256, self._cache.num_resting)
        self._free += self._cache.evict(max(num_blocks, ahead))

    def _give_back(self, blocks: Sequence[int]) -> None:
        num_holders = self._num_holders
        left: list[int] = []
        for block in blocks:
            num_holders[block] -= 1
            if not num_holders[block]:
                left.append(block)
        self._free += left if self._cache is None else self._cache.rest(left)
