"""The pool of KV blocks: who holds which, and nothing else."""

from collections import Counter
from collections.abc import Sequence


class BlockPool:
    """Blocks 0 … num_blocks − 1, each free or held by one block table or by several that share it.

    Invariant: free + held = num_blocks, checked by `check`. A shared block is counted once and free
    when its last holder has given it back.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_holders: Counter[int] = Counter()

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` positions."""
        return -(-num_tokens // self.block_size)

    def missing(self, block_table: Sequence[int], num_tokens: int) -> int:
        """Blocks that `block_table` lacks to cover `num_tokens` positions."""
        return max(0, self.blocks_for(num_tokens) - len(block_table))

    def extend(self, block_table: list[int], num_tokens: int) -> None:
        """Grow `block_table` in place to cover `num_tokens`; needs `missing` free blocks."""
        for _ in range(self.missing(block_table, num_tokens)):
            block = self._free.pop()
            self._num_holders[block] = 1
            block_table.append(block)

    def grow(self, block_tables: Sequence[list[int]]) -> list[int]:
        """Extend each table by one block in place; needs as many free blocks. Return the blocks."""
        blocks = [self._free.pop() for _ in block_tables]
        for block, block_table in zip(blocks, block_tables, strict=True):
            self._num_holders[block] = 1
            block_table.append(block)
        return blocks

    def share(self, block_table: list[int], blocks: Sequence[int]) -> None:
        """Append blocks to `block_table` in place that other tables hold too."""
        for block in blocks:
            assert self._num_holders[block] > 0, "a KV block is shared that nobody holds"
            self._num_holders[block] += 1
            block_table.append(block)

    def release(self, block_table: list[int]) -> None:
        """Give back all blocks of `block_table` and empty it in place."""
        for block in block_table:
            self._num_holders[block] -= 1
            if not self._num_holders[block]:
                del self._num_holders[block]
                self._free.append(block)
        block_table.clear()

    def check(self, block_tables: list[list[int]]) -> None:
        """Assert that the tables hold exactly the held blocks, as often as was counted."""
        for table in block_tables:
            assert len(table) == len(set(table)), "a KV block is twice in one table"
        in_tables = Counter(block for table in block_tables for block in table)
        assert in_tables == self._num_holders, "held KV blocks and block tables differ"
        assert self._num_holders.keys().isdisjoint(self._free), "a KV block is free and held"
        assert len(self._num_holders) + len(self._free) == self.num_blocks, "a KV block is lost"
