"""How the choices of one request share the KV blocks of their prompt.

They share its full blocks, which the first of them to run computes. The rest of the prompt, at
least its last token, whose logits each needs, and at most one block, each computes into blocks of
its own. So a block that several hold is never written again, and nothing is copied.
"""

from loraplex.engine.kv_blocks import BlockPool
from loraplex.engine.request import Request, Status


def shareable_blocks(request: Request, block_size: int) -> list[int]:
    """Blocks that a choice which is about to run can take over from one that runs."""
    other = _running_sibling(request)
    if other is None:
        return []
    return other.block_table[: (request.num_prompt_tokens - 1) // block_size]


def share(request: Request, blocks: list[int], pool: BlockPool) -> None:
    """Let a choice begin with these blocks, of `shareable_blocks`; it may have to await them."""
    if not blocks:
        return
    other = _running_sibling(request)
    assert other is not None
    pool.share(request.block_table, blocks)
    request.num_shared_tokens = len(blocks) * pool.block_size
    request.awaits = other
    release_awaiting(other)


def release_awaiting(request: Request) -> None:
    """Let those choices go on whose share of the prompt `request` has computed."""
    for other in request.submission.open:
        if other.awaits is request and request.num_computed_tokens >= other.num_shared_tokens:
            other.num_computed_tokens = other.num_shared_tokens
            other.awaits = None


def check(running: list[Request]) -> None:
    """Assert that a choice is preempted before the one that it awaits: it stands behind it."""
    for place, request in enumerate(running):
        if request.awaits is not None:
            assert request.num_computed_tokens == 0, "a choice ran before its prompt was there"
            assert request.awaits in running[:place], "a choice awaits one that may be gone"


def _running_sibling(request: Request) -> Request | None:
    """Another choice that holds the prompt's blocks; all that run hold the same."""
    running = (other for other in request.submission.open if other.status is Status.RUNNING)
    return next(running, None)
