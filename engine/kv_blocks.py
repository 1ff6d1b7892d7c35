"""The pool of KV blocks: who holds which, and nothing else."""


class BlockPool:
    """Blocks 0 … num_blocks − 1, each free or held by one request.

    Invariant: free + held = num_blocks, checked by `check`.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._held: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` positions."""
        return -(-num_tokens // self.block_size)

    def missing(self, block_table: list[int], num_tokens: int) -> int:
        """Blocks that `block_table` lacks to cover `num_tokens` positions."""
        return max(0, self.blocks_for(num_tokens) - len(block_table))

    def extend(self, block_table: list[int], num_tokens: int) -> None:
        """Grow `block_table` in place to cover `num_tokens`; needs `missing` free blocks."""
        for _ in range(self.missing(block_table, num_tokens)):
            block = self._free.pop()
            self._held.add(block)
            block_table.append(block)

    def release(self, block_table: list[int]) -> None:
        """Give back all blocks of `block_table` and empty it in place."""
        for block in block_table:
            self._held.remove(block)
            self._free.append(block)
        block_table.clear()

    def check(self, block_tables: list[list[int]]) -> None:
        """Assert that the tables hold exactly the held blocks, each once."""
        in_tables = [block for table in block_tables for block in table]
        assert len(in_tables) == len(set(in_tables)), "a KV block is in two tables"
        assert set(in_tables) == self._held, "held KV blocks and block tables differ"
        assert self._held.isdisjoint(self._free), "a KV block is free and held"
        assert len(self._held) + len(self._free) == self.num_blocks, "a KV block is lost"
