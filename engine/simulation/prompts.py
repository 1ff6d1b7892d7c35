"""What prompts of simulated requests say, for the cache of prefixes."""

from collections.abc import Sequence

from loraplex.engine.simulation.traces import TraceRequest

HASHED_TOKENS = 512
"""Tokens of a block that Mooncake's traces give a hash (https://arxiv.org/abs/2407.00079)."""
_FIRST = 2
"""Tokens below are those of outputs."""


def prompt_of(number: int, request: TraceRequest) -> tuple[int, ...]:
    """Its tokens. Blocks of equal hashes are equal; a prompt of which the trace tells nothing is
    like no other, `number` being its place in the trace."""
    if not request.hash_ids:
        return (_FIRST + number,) * request.prompt_tokens
    tokens: list[int] = []
    for block in request.hash_ids:
        tokens += [_FIRST + block] * min(HASHED_TOKENS, request.prompt_tokens - len(tokens))
    return tuple(tokens)


def vocabulary(requests: Sequence[TraceRequest]) -> int:
    """How many different tokens the prompts of a load and the outputs may hold."""
    most = max((max(request.hash_ids, default=0) for request in requests), default=0)
    return _FIRST + 1 + max(most, len(requests))


def ideal_hit_share(requests: Sequence[TraceRequest]) -> float:
    """Part of all prompt tokens that a cache without end, which forgets nothing and shares between
    nobody but one tenant's requests for one adapter, would have held at their arrival."""
    seen: set[tuple[object, ...]] = set()
    held = 0
    for request in requests:
        whole = request.hash_ids[: (request.prompt_tokens - 1) // HASHED_TOKENS]
        path: tuple[object, ...] = (request.tenant, request.adapter)
        is_held = True
        for block in whole:
            path = (hash(path), block)
            is_held = is_held and path in seen
            held += HASHED_TOKENS * is_held
            seen.add(path)
    return held / sum(request.prompt_tokens for request in requests)
