"""Which KV blocks hold which tokens, so that what begins alike is computed once. Pure Python."""

from array import array
from collections.abc import Collection, Sequence
from itertools import count

from loraplex.engine.cache_eviction import EvictionOrder
from loraplex.engine.cached_block import Activating, BlockKey, CachedBlock, Namespace, Tree


class PrefixCache:
    """Full KV blocks, by namespace, tokens, and the block before them.

    Blocks are found by the tokens themselves, one after the other, so that no collision of hashes
    can give a request what other tokens have made; and Python's hashes of bytes are keyed, so that
    nobody can make them collide.

    An adapter that acts from some position on shares what lies before with the base model: such
    sequences lie in the tree of that, and the block in which the adapter begins to act is known by
    its digest and by the position too. All that lies behind is known by that block.

    Invariant: whoever holds a block here holds all before it. So whatever rests, that is, nobody
    holds, can go: it has a leaf, and then the next.
    """

    def __init__(self, num_blocks: int, block_size: int, order: EvictionOrder) -> None:
        self._block_size = block_size
        self._order = order
        self._trees: dict[Namespace, Tree] = {}
        self._known: dict[tuple[int, BlockKey], CachedBlock] = {}
        """By the number of what lies before, and its own key."""
        self._by_block: list[CachedBlock | None] = [None] * num_blocks
        self._numbers = count(1)
        self.num_resting = 0
        """Blocks that nobody holds; each can be evicted."""
        self.num_evicted = 0
        """Blocks that had to go for others."""

    def version(self, namespace: Namespace) -> int:
        """A number that changes with whatever `match` may find in the namespace."""
        tree = self._trees.get(namespace.root)
        return 0 if tree is None else tree.version

    def match(self, namespace: Namespace, token_ids: list[int], max_blocks: int) -> list[int]:
        """The blocks with which a sequence begins, as far as they are known, at most so many."""
        found: list[int] = []
        tree = self._trees.get(namespace.root)
        if tree is None:
            return found
        number = tree.number
        for index in range(max_blocks):
            cached = self._known.get((number, self._key(namespace, token_ids, index)))
            if cached is None:
                break
            found.append(cached.block)
            number = cached.number
        return found

    def enter(
        self, namespace: Namespace, token_ids: list[int], block_table: Sequence[int], index: int
    ) -> int | None:
        """Note what block number `index` of a table holds: its part of `token_ids`, computed.

        Returns the block that is known by these tokens: another, if one was there before; then that
        must be held in place of this. None if what lies before is not known any more.
        """
        before = self._by_block[block_table[index - 1]] if index else self._tree(namespace.root)
        if before is None:
            return None
        key = self._key(namespace, token_ids, index)
        known = self._known.get((before.number, key))
        if known is not None:
            return known.block
        block = block_table[index]
        assert self._by_block[block] is None, "a KV block is known by two sequences"
        tree = before.tree if isinstance(before, CachedBlock) else before
        cached = CachedBlock(next(self._numbers), tree, before, key, block, 0)
        self._known[before.number, key] = self._by_block[block] = cached
        before.num_children += 1
        tree.blocks[block] = cached
        tree.version = cached.number
        self._order.entered(cached)
        return block

    def count_use(self, blocks: Sequence[int]) -> None:
        """A request that is new has found these blocks of one sequence, and holds them."""
        self._order.used(self._all_known(blocks))

    def hold(self, block: int) -> None:
        """A block that rested is in a block table again."""
        cached = self._by_block[block]
        assert cached is not None, "a KV block is shared that nobody knows"
        cached.is_held = True
        self.num_resting -= 1
        self._order.held(cached)

    def rest(self, blocks: Sequence[int]) -> list[int]:
        """Blocks of one sequence, in order, are in no table any more; return the unknown ones."""
        known = self._all_known(blocks)
        for cached in known:
            cached.is_held = False
        if known:
            self.num_resting += len(known)
            self._order.rested(known)
        return [block for block in blocks if self._by_block[block] is None]

    def evict(self, num_blocks: int) -> list[int]:
        """Forget so many blocks that rest, and return them."""
        assert num_blocks <= self.num_resting, "too few KV blocks rest"
        evicted: list[int] = []
        for cached in self._order.take(num_blocks):
            tree, block = cached.tree, cached.block
            del self._known[cached.parent.number, cached.key]
            self._by_block[block] = None
            del tree.blocks[block]
            evicted.append(block)
            tree.version = next(self._numbers)
            if not tree.num_children:
                self._trees.pop(tree.namespace, None)
        self.num_resting -= num_blocks
        self.num_evicted += num_blocks
        return evicted

    def forget(self, namespace: Namespace) -> list[int]:
        """Know nothing any more of a namespace and all that have the same root; return the blocks
        that rested."""
        tree = self._trees.pop(namespace.root, None)
        if tree is None:
            return []
        forgotten = [*tree.blocks.values()]
        for cached in reversed(forgotten):
            del self._known[cached.parent.number, cached.key]
            self._by_block[cached.block] = None
            cached.parent.num_children -= 1
            self.num_resting -= not cached.is_held
            self._order.gone(cached)
        return [cached.block for cached in forgotten if not cached.is_held]

    def check(self, held: Collection[int]) -> None:
        """Assert that all agrees, and that of the known blocks exactly those in `held` are held."""
        known = [cached for cached in self._by_block if cached is not None]
        assert len(known) == len(self._known), "a cached block is known by no tokens"
        nodes: list[CachedBlock | Tree] = [*known, *self._trees.values()]
        num_children = dict.fromkeys(nodes, 0)
        for cached in known:
            assert self._known[cached.parent.number, cached.key] is cached
            assert self._by_block[cached.block] is cached
            assert cached.is_held == (cached.block in held), "a held block may be evicted"
            if isinstance(cached.parent, CachedBlock):
                assert cached.parent.is_held or not cached.is_held, "a path is held in part"
            num_children[cached.parent] += 1
            assert cached.tree.blocks[cached.block] is cached
        assert all(node.num_children == num for node, num in num_children.items())
        num_in_trees = sum(len(tree.blocks) for tree in self._trees.values())
        assert num_in_trees == len(known), "a tree holds what is not known"
        assert all(tree.num_children for tree in self._trees.values()), "an empty tree is kept"
        assert self.num_resting == sum(not cached.is_held for cached in known)

    def _tree(self, namespace: Namespace) -> Tree:
        tree = self._trees.get(namespace)
        if tree is None:
            shelf = self._order.shelf(namespace.tenant)
            tree = self._trees[namespace] = Tree(next(self._numbers), namespace, shelf)
        return tree

    def _all_known(self, blocks: Sequence[int]) -> list[CachedBlock]:
        by_block = self._by_block
        return [cached for block in blocks if (cached := by_block[block]) is not None]

    def _key(self, namespace: Namespace, token_ids: list[int], index: int) -> BlockKey:
        size = self._block_size
        first = index * size
        tokens = array("i", token_ids[first : first + size]).tobytes()
        if namespace.start and first <= namespace.start < first + size:
            assert namespace.digest is not None, "the base model begins to act"
            return Activating(tokens, namespace.digest, namespace.start - first)
        return tokens
