"""Whether what a preempted request has computed is copied to the host, and back on its return."""

from collections.abc import Callable, Iterable, Mapping

from loraplex.engine.config import SchedulerConfig
from loraplex.engine.draft import Draft
from loraplex.engine.host_blocks import HostBlocks, HostCopy
from loraplex.engine.plan import BlockCopy, StepPlan
from loraplex.engine.request import Request

_LEARNING_RATE = 0.2


class Swapping:
    """Keeps the books of copies in host memory; plans say what is copied, runners do it.

    All copies to the host come before all copies from it, and both before the step computes: so
    blocks of the device are read before others write to them. What was copied but is found in the
    prefix cache when the request returns is not copied back.
    """

    def __init__(
        self, config: SchedulerConfig, tell: Callable[[Mapping[str, float]], None]
    ) -> None:
        """`tell` is given what copies have used of the machine, ms by `Request.key`."""
        self._block_size = config.block_size
        self._ms_per_block = config.copy_ms_per_block
        self._pool = HostBlocks(config.num_host_blocks)
        self._tell = tell
        self._used_ms: dict[str, float] = {}
        """What copies to the host took, of requests that have not returned, and not ended."""

    @property
    def num_free_blocks(self) -> int:
        """Host blocks that hold nothing."""
        return self._pool.num_free

    @property
    def num_blocks(self) -> int:
        """All host blocks."""
        return self._pool.num_blocks

    def begin_step(self) -> None:
        """The step before has ended."""
        self._pool.begin_step()

    def round_trip_ms(self, request: Request) -> float | None:
        """What copying all that a request has computed takes, there and back; None if it cannot be
        copied.

        One that does not decode may have been given blocks in this very step, which hold nothing
        yet.
        """
        num_blocks = self._num_blocks(request.num_computed_tokens)
        if request.row < 0 or num_blocks > self._pool.num_free:
            return None
        return 2 * num_blocks * self._ms_per_block

    def return_ms(self, request: Request, num_shared: int) -> float:
        """What copying back takes for a waiting request that finds so many blocks."""
        copy = request.host_copy
        if copy is None:
            return 0.0
        return max(0, len(copy.blocks) - num_shared) * self._ms_per_block

    def restore_ms(self, request: Request, num_shared: int) -> float:
        """The same with what the copy to the host has taken; it has one."""
        assert request.host_copy is not None
        out_ms = len(request.host_copy.blocks) * self._ms_per_block
        return out_ms + self.return_ms(request, num_shared)

    def copy_out(self, request: Request, draft: Draft) -> None:
        """A decoding request is about to lose its blocks; `round_trip_ms` is not None."""
        num_tokens = request.num_computed_tokens
        blocks = self._pool.take(self._num_blocks(num_tokens))
        request.host_copy = HostCopy(blocks, num_tokens)
        table = tuple(request.block_table[: len(blocks)])
        draft.copies_out.append(BlockCopy(request.key, table, blocks))
        self._used_ms[request.key] = 0.0

    def copy_back(self, request: Request, draft: Draft) -> None:
        """A request has its blocks, and has found the first `num_computed_tokens` in them."""
        copy = request.host_copy
        if copy is None:
            return
        request.host_copy = None
        self._pool.give_back(copy.blocks, after_step=True)
        first = request.num_computed_tokens // self._block_size
        if copy.num_tokens <= request.num_computed_tokens:
            self._tell_used(request)
            return
        table = tuple(request.block_table[first : len(copy.blocks)])
        draft.copies_in.append(BlockCopy(request.key, table, copy.blocks[first:]))
        request.num_computed_tokens = copy.num_tokens

    def forget(self, request: Request) -> None:
        """A request has ended, or must compute anew what was to be copied."""
        self._tell_used(request)
        if request.host_copy is not None:
            self._pool.give_back(request.host_copy.blocks, after_step=False)
            request.host_copy = None

    def copied(self, plan: StepPlan, ms: float) -> None:
        """Learn from a step's copies, which took `ms`, and charge them to whom they were for."""
        if not plan.num_copied_blocks or ms <= 0:
            return
        per_block = ms / plan.num_copied_blocks
        rate = _LEARNING_RATE if self._ms_per_block else 1.0
        self._ms_per_block += rate * (per_block - self._ms_per_block)
        for copy in plan.copies_out:
            if copy.request_id in self._used_ms:  # else it has ended since
                self._used_ms[copy.request_id] = per_block * len(copy.host_blocks)
        for copy in plan.copies_in:
            used_ms = self._used_ms.pop(copy.request_id, 0.0)
            self._tell({copy.request_id: used_ms + per_block * len(copy.host_blocks)})

    def check(self, requests: Iterable[Request]) -> None:
        """Assert that the copies of these requests are all that there are."""
        requests = list(requests)
        self._pool.check(r.host_copy for r in requests if r.host_copy is not None)
        assert self._used_ms.keys() <= {r.key for r in requests}, "a copy is charged to nobody"

    def _tell_used(self, request: Request) -> None:
        used_ms = self._used_ms.pop(request.key, 0.0)
        if used_ms:
            self._tell({request.key: used_ms})

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
