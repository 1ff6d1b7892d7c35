"""The pool of KV blocks in the host's memory, for requests that lost those on the device."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostCopy:
    """What a preempted request had in the KV cache."""

    blocks: tuple[int, ...]
    """Host blocks, in the order of its tokens."""
    num_tokens: int
    """Computed tokens in them; the last block may be full in part."""


class HostBlocks:
    """Blocks 0 … num_blocks − 1, each free or of one copy.

    A block that is given back in a step may still be read by that step, and is free from the next
    one on. Invariant: free + held + being read = num_blocks, checked by `check`.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._being_read: list[int] = []

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free)

    def take(self, num_blocks: int) -> tuple[int, ...]:
        """Take so many; they must be free."""
        assert num_blocks <= len(self._free), "too few host blocks are free"
        return tuple(self._free.pop() for _ in range(num_blocks))

    def give_back(self, blocks: Sequence[int], *, after_step: bool) -> None:
        """The copy in these is not needed any more, or not after this step."""
        (self._being_read if after_step else self._free).extend(blocks)

    def begin_step(self) -> None:
        """The step before has ended."""
        self._free += self._being_read
        self._being_read.clear()

    def check(self, copies: Iterable[HostCopy]) -> None:
        """Assert that exactly these copies hold blocks, each its own."""
        held = [block for copy in copies for block in copy.blocks]
        every = sorted([*held, *self._free, *self._being_read])
        assert every == list(range(self.num_blocks)), "a host block is lost, or held twice"
