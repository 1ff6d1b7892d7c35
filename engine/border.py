"""The border between KV blocks and adapters, which share the memory of one device."""

from loraplex.adapters.residency import Residency
from loraplex.engine.admission import Blocked
from loraplex.engine.config import SchedulerConfig
from loraplex.engine.draft import Draft
from loraplex.engine.kv_blocks import BlockPool
from loraplex.engine.loads import Loads
from loraplex.engine.request import Request


class Border:
    """Lends KV blocks that nobody holds to adapters that requests wait for, and takes them back
    for requests that wait for blocks, as far as adapters of which nobody has need lie in them.

    Neither side falls below its floor: adapters keep what they begin with, and the pool enough for
    one request of the longest length, so that some request always advances. Nothing is moved for
    what nobody waits for, so memory does not swing to and fro.
    """

    def __init__(
        self, config: SchedulerConfig, pool: BlockPool, residency: Residency, loads: Loads
    ) -> None:
        self._block_bytes = config.lent_block_bytes
        self._min_blocks = config.min_blocks
        self._pool = pool
        self._residency = residency
        self._loads = loads

    def moves_for(self, request: Request, refusal: Blocked | None, draft: Draft) -> bool:
        """Try to move it for a request that was refused; True if it has moved."""
        if refusal is Blocked.ADAPTER_MEMORY:
            return self._lend(request, draft)
        if refusal is Blocked.KV_BLOCKS:
            num_tokens = request.num_tokens + request.submission.sampling.max_tokens
            return self.take_back(self._pool.blocks_for(num_tokens), draft)
        return False

    def take_back(self, num_blocks: int, draft: Draft) -> bool:
        """Give the pool so many blocks again, or as many as there are; True if there were any."""
        if not self._pool.num_lent:
            return False
        spare_blocks = self._residency.spare_bytes() // self._block_bytes
        num_blocks = min(num_blocks, self._pool.num_lent, spare_blocks)
        if num_blocks <= 0:
            return False
        capacity_bytes = self._residency.capacity_bytes - num_blocks * self._block_bytes
        self._loads.evicted(self._residency.resize(capacity_bytes), draft)
        self._pool.take_back(num_blocks)
        return True

    def check(self) -> None:
        """Assert that nothing is lost between the two."""
        lent_bytes = self._pool.num_lent * self._block_bytes
        assert self._residency.capacity_bytes == self._residency.floor_bytes + lent_bytes
        assert not self._pool.num_lent or self._pool.num_blocks >= self._min_blocks

    def _lend(self, request: Request, draft: Draft) -> bool:
        if not self._block_bytes:
            return False
        missing_bytes = self._residency.missing_bytes(
            request.submission.adapter_bytes, request.tenant
        )
        if missing_bytes is None:
            return False
        num_blocks = -(-missing_bytes // self._block_bytes)
        pool = self._pool
        if num_blocks > pool.num_free or pool.num_blocks - num_blocks < self._min_blocks:
            return False
        draft.lent_blocks += pool.lend(num_blocks)
        self._residency.resize(self._residency.capacity_bytes + num_blocks * self._block_bytes)
        return True
