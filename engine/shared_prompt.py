"""How the choices of one request share the KV blocks of their prompt.

They share its full blocks, which the first of them to run computes. The rest of the prompt, at
least its last token, whose logits each needs, and at most one block, each computes into blocks of
its own. So a block that several hold is never written again, and nothing is copied.

A choice may begin in the very step that computes what it shares: attention writes the keys and
values of all rows before any row attends. Should that step fail, so does the whole request.
"""

from collections.abc import Callable

from loraplex.engine.request import Request, Status


def shareable_blocks(
    request: Request, block_size: int, computed: Callable[[Request], int]
) -> list[int]:
    """Blocks that a choice which is about to run can take over from one that runs, all or none.

    `computed` tells how many of a running choice's tokens are in the KV cache after this step.
    """
    num_blocks = (request.num_prompt_tokens - 1) // block_size
    for other in request.submission.open:
        if other.status is Status.RUNNING and computed(other) >= num_blocks * block_size:
            return other.block_table[:num_blocks]
    return []
