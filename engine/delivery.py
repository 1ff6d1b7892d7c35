"""Gives choices what a step computed: their tokens, the text of these, and their ends."""

from collections.abc import Callable, Sequence
from typing import Literal

from loraplex.engine.cold_starts import Ended
from loraplex.engine.decode_rows import DecodeRows
from loraplex.engine.draft import Draft
from loraplex.engine.events import Events, FirstToken
from loraplex.engine.plan import Logprobs, StepOutput
from loraplex.engine.protocol import Tokens
from loraplex.engine.request import Piece, Request, Status, Submission
from loraplex.engine.request_blocks import RequestBlocks

_NOTHING = Piece()


class Delivery:
    """Most tokens are of choices that decode and go on: what could be different with one is looked
    for in all of them at once."""

    def __init__(
        self,
        decoding: DecodeRows,
        finish: Callable[[Request], None],
        fail: Callable[[Submission, str], None],
        begin_to_decode: Callable[[Request], None],
        blocks: RequestBlocks,
    ) -> None:
        """`finish` ends a choice, `fail` a request with all its choices, for numbers that are not
        finite; `begin_to_decode` is told of choices that have got the first token after their
        prompt."""
        self._decoding = decoding
        self._finish = finish
        self._fail = fail
        self._begin_to_decode = begin_to_decode
        self._blocks = blocks
        self._ended_s = 0.0

    def deliver(
        self, draft: Draft, passes: Sequence[Ended], output: StepOutput, events: Events
    ) -> None:
        """Advance those of whom something was computed, `passes` that are done among them; add
        what is to be told to `events`."""
        self._ended_s = draft.ended_s
        self._to_decodes(draft, output, events)
        self._to_prefills(draft, output, events)
        for request, num_tokens, token_id in passes:
            self._to_prompt(request, num_tokens, token_id, output, events)

    def _to_decodes(self, draft: Draft, output: StepOutput, events: Events) -> None:
        selection = draft.selection
        ids = output.token_ids[: len(selection)]
        is_marked = self._decoding.advance(selection, ids)
        if output.failures:
            is_marked[:] = True
        marked: list[int] = is_marked.nonzero()[0].tolist()
        requests = list(selection.requests)
        token_ids, sequences = ids.tolist(), draft.decodes.draws.tolist()
        for row in reversed(marked):
            del requests[row], token_ids[row], sequences[row]
        for request in _deliver_plain(requests, token_ids, sequences, events):
            self._finish(request)
        for row in marked:
            request = selection.requests[row]
            if request.status is Status.RUNNING:  # else another of its choices has failed
                request.num_computed_tokens += 1
                self._take(request, int(ids[row]), output, events)

    def _to_prefills(self, draft: Draft, output: StepOutput, events: Events) -> None:
        token_ids = iter(output.token_ids[len(draft.selection) :].tolist())
        for request, chunk in zip(draft.prefilling, draft.chunks, strict=True):
            token_id = None if chunk.sample is None else next(token_ids)
            self._to_prompt(request, len(chunk.token_ids), token_id, output, events)

    def _to_prompt(
        self,
        request: Request,
        num_tokens: int,
        token_id: int | None,
        output: StepOutput,
        events: Events,
    ) -> None:
        if request.status is not Status.RUNNING:
            return  # another of its choices has failed
        if token_id is not None and request.route and not request.num_output_tokens:
            seconds = self._ended_s - request.submission.arrival_s
            events.first_tokens.append(FirstToken(request.route, seconds))
        request.num_computed_tokens += num_tokens
        request.submission.note_computed(request.num_computed_tokens)
        self._blocks.enter(request)
        if token_id is not None and self._take(request, token_id, output, events):
            self._begin_to_decode(request)

    def _take(self, request: Request, token_id: int, output: StepOutput, events: Events) -> bool:
        """Give a choice its next token, or fail its request without one; True if it goes on."""
        failure = output.failures.get(request.key)
        if failure is not None:
            self._fail(request.submission, failure)
            return False
        if _deliver_one(request, token_id, output.logprobs.get(request.key), events):
            self._finish(request)
            return False
        return True


def _deliver_one(
    request: Request, token_id: int, logprobs: Logprobs | None, events: Events
) -> bool:
    """True if the choice ends with this token."""
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


def _deliver_plain(
    requests: Sequence[Request],
    token_ids: Sequence[int],
    sequences: Sequence[int],
    events: Events,
) -> list[Request]:
    """The same for many that decode, none of which its token or its number can end, or asks for
    log-probabilities. `sequences` has the tokens' numbers, from 0.

    Return those that a stop string ends.
    """
    stopped: list[Request] = []
    add = events.tokens.append
    for request, token_id, sequence in zip(requests, token_ids, sequences, strict=True):
        request.token_ids.append(token_id)
        request.num_computed_tokens += 1
        text = request.text
        piece = text.push(token_id, None)
        reason: Literal["stop"] | None = None
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
