"""What requests do with KV blocks: find some, take more, tell what they hold, give them back."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.cache_eviction import FairEviction
from loraplex.engine.cached_block import Namespace
from loraplex.engine.config import SchedulerConfig
from loraplex.engine.kv_blocks import BlockPool
from loraplex.engine.prefix_cache import PrefixCache
from loraplex.engine.request import Request, Status, Submission
from loraplex.engine.shared_prompt import shareable_blocks
from loraplex.engine.swapping import Swapping


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """What the prefix cache has done since the start."""

    asked_tokens: int = 0
    """Prompt tokens of requests that have begun."""
    found_tokens: int = 0
    """Of those, tokens that were cached."""
    evicted_blocks: int = 0
    """Cached blocks that had to go for others."""


class RequestBlocks:
    """The pool of KV blocks, and the prefix cache if there is one, as requests use them.

    A block is known to the cache once a step has computed all of it and has not failed; from then
    on nobody writes to it. Whatever a request has computed stays known when it ends, is aborted, or
    loses its blocks, until the blocks are needed.
    """

    def __init__(
        self, config: SchedulerConfig, tell: Callable[[Mapping[str, float]], None]
    ) -> None:
        """`tell` is `Swapping`'s."""
        num_blocks = config.num_blocks
        self._block_size = size = config.block_size
        self._cache: PrefixCache | None = None
        if config.prefix_cache:
            self._cache = PrefixCache(num_blocks, size, FairEviction(num_blocks))
        self.pool = BlockPool(num_blocks, size, self._cache)
        self.swapping = Swapping(config, tell)
        self._num_asked_tokens = self._num_found_tokens = 0

    @property
    def counts(self) -> CacheCounts:
        """What the cache has done; all 0 without one."""
        if self._cache is None:
            return CacheCounts()
        return CacheCounts(self._num_asked_tokens, self._num_found_tokens, self._cache.num_evicted)

    def shared(self, request: Request, computed: Callable[[Request], int]) -> list[int]:
        """Blocks that a waiting request can take over instead of computing them: cached ones, or
        those of another choice; `computed` is `shareable_blocks`'s. Never all of its tokens."""
        found = self._found(request)
        if request.submission.sampling.n > 1:
            of_choice = shareable_blocks(request, self._block_size, computed)
            if len(of_choice) > len(found):
                return of_choice
        return found

    def start(self, request: Request, shared: list[int]) -> None:
        """Give a request its blocks, `shared` first; it has computed what is in those."""
        submission = request.submission
        self.pool.share(request.block_table, shared)
        request.num_computed_tokens = len(shared) * self._block_size
        request.enter_at = self._enter_at(request, shared)
        if submission.waited_until_s is None:
            submission.num_prompt_found = request.num_computed_tokens
            self._num_asked_tokens += request.num_prompt_tokens
            self._num_found_tokens += request.num_computed_tokens
            if self._cache is not None:
                self._cache.count_use(shared)
        self.pool.extend(request.block_table, request.num_tokens)

    def enter(self, request: Request) -> bool:
        """Tell the cache what a running request has computed, in steps that have not failed. True
        if it now holds other blocks that were known by the same tokens.

        A prompt's blocks are in the tables of other choices too. Of those that decode all of them
        are entered, or none ever will be.
        """
        if request.row >= 0:
            return request.num_computed_tokens >= request.enter_at and self._enter(request)
        is_replaced = False
        for choice in request.submission.open:
            is_prefilling = choice.status is Status.RUNNING and choice.row < 0
            if is_prefilling and choice.num_computed_tokens >= choice.enter_at:
                is_replaced |= self._enter(choice)
        return is_replaced

    def give_back(self, request: Request) -> None:
        """Take all blocks of a request."""
        self.pool.release(request.block_table)
        request.lose_blocks()

    def forget_adapter(self, key: AdapterKey, requests: Iterable[Request]) -> None:
        """The same for all that one adapter has computed."""
        self.forget(Namespace(key.tenant, key.digest), requests)

    def forget(self, namespace: Namespace, requests: Iterable[Request]) -> None:
        """Know nothing any more of what requests of a namespace have computed. Of `requests`, all
        that are open, those that may have read it add nothing, until they begin anew."""
        for request in requests:
            if _namespace(request.submission).root == namespace.root:
                request.enter_at = sys.maxsize
                self.swapping.forget(request)
        if self._cache is not None:
            self.pool.reclaim(self._cache.forget(namespace))

    def _found(self, request: Request) -> list[int]:
        if self._cache is None:
            return []
        namespace = _namespace(request.submission)
        version = self._cache.version(namespace)
        if request.found[0] != version:
            max_blocks = (request.num_tokens - 1) // self._block_size
            request.found = version, self._cache.match(namespace, request.token_ids, max_blocks)
        return request.found[1]

    def _enter_at(self, request: Request, shared: list[int]) -> int:
        """Behind the blocks that it begins with: who computes these enters them for all that hold
        them, or they have been forgotten."""
        if self._cache is None:
            return sys.maxsize
        behind = (len(shared) + 1) * self._block_size
        for other in request.submission.open:
            is_prefilling = other.status is Status.RUNNING and other.row < 0
            if is_prefilling and other.block_table[: len(shared)] == shared:
                behind = min(behind, other.enter_at)
        return behind

    def _enter(self, request: Request) -> bool:
        assert self._cache is not None
        namespace, table, size = (
            _namespace(request.submission),
            request.block_table,
            self._block_size,
        )
        is_replaced = False
        while request.num_computed_tokens >= request.enter_at:
            index = request.enter_at // size - 1
            block = self._cache.enter(namespace, request.token_ids, table, index)
            if block is None:
                request.enter_at = sys.maxsize
                break
            if block != table[index]:
                self.pool.replace(table, index, block)
                is_replaced = True
            request.enter_at += size
        return is_replaced


def _namespace(submission: Submission) -> Namespace:
    return submission.namespace
