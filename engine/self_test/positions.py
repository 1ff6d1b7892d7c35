"""What a reference's logits say of the tokens that were drawn."""

from collections.abc import Sequence

import torch
from torch import Tensor

from loraplex.engine.self_test.comparison import Position


def positions_of(
    logits: Tensor, base_logits: Tensor, tokens: Sequence[int]
) -> tuple[Position, ...]:
    """Read the positions at which ``tokens`` were drawn.

    Args:
        logits: ``[len(tokens), vocab]``, with the adapter.
        base_logits: ``[len(tokens), vocab of the base]``, without it.
        tokens: ids of the vocabulary.
    """
    drawn = torch.tensor(tokens, device=logits.device)[:, None]
    found = logits.double()
    base = base_logits.double()
    top = found.topk(2, dim=-1)
    logprobs = found.log_softmax(dim=-1).gather(1, drawn)[:, 0]
    # A token that the adapter added has no probability without it.
    known = drawn.clamp(max=base.shape[-1] - 1)
    base_logprobs = base.log_softmax(dim=-1).gather(1, known)[:, 0]
    return tuple(
        Position(
            is_finite=True,
            best=int(top.indices[row, 0]),
            margin=float(top.values[row, 0] - top.values[row, 1]),
            max_abs_logit=float(found[row].abs().max()),
            logprob=float(logprobs[row]),
            base_logprob=float(base_logprobs[row]),
        )
        if bool(torch.isfinite(found[row]).all())
        else Position(is_finite=False)
        for row in range(len(tokens))
    )


def known_to_base(ids: Tensor, vocab_size: int) -> Tensor:
    """The same ids with the base model's first token in the place of those that it does not have,
    so that it can tell what it makes of the others."""
    return ids.where(ids < vocab_size, 0)
