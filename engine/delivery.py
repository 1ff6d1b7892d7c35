"""Gives choices their tokens: what they become as text, what is told of them, and why they end."""

from collections.abc import Iterable, Sequence

from loraplex.engine.events import Events
from loraplex.engine.plan import Logprobs
from loraplex.engine.protocol import Tokens
from loraplex.engine.request import Piece, Request

_NOTHING = Piece()


def deliver(request: Request, token_id: int, logprobs: Logprobs | None, events: Events) -> bool:
    """Give a choice its next token; True if it ends with it."""
    request.token_ids.append(token_id)
    submission, text = request.submission, request.text
    ends = token_id in submission.end_token_ids and request.may_end
    piece = _NOTHING if ends else text.push(token_id, logprobs)
    if ends or text.stopped:
        events.add_token(request, token_id, piece + text.end(), "stop")
        return True
    if request.num_output_tokens >= submission.sampling.max_tokens:
        events.add_token(request, token_id, piece + text.end(), "length")
        submission.was_cut = True
        return True
    events.add_token(request, token_id, piece, None)
    return False


def deliver_plain(
    requests: Sequence[Request],
    token_ids: Iterable[int],
    sequences: Iterable[int],
    events: Events,
) -> list[Request]:
    """The same for many that decode, none of which its token or its number can end, or asks for
    log-probabilities: most tokens come this way. `sequences` has the tokens' numbers, from 0.

    Return those that a stop string ends.
    """
    stopped: list[Request] = []
    add = events.tokens.append
    for request, token_id, sequence in zip(requests, token_ids, sequences, strict=True):
        request.token_ids.append(token_id)
        request.num_computed_tokens += 1
        text = request.text
        piece = text.push(token_id, None)
        reason = None
        if text.stopped:
            piece, reason = piece + text.end(), "stop"
            stopped.append(request)
        add(
            Tokens(
                request_id=request.request_id,
                choice=request.choice,
                sequence=sequence,
                ids=(token_id,),
                text=piece.text,
                logprobs=piece.logprobs,
                finish_reason=reason,
            )
        )
    return stopped
