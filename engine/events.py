"""What a step has to say about requests, collected until it is sent."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from loraplex.adapters.residency_counts import Route
from loraplex.engine.errors import (
    AdapterOverCap,
    DeadlineUnreachable,
    EngineOverloaded,
    JournalUnavailable,
    RequestRefused,
)
from loraplex.engine.protocol import (
    Explained,
    Failed,
    Finished,
    FinishReason,
    Rejected,
    RejectionCode,
    StepFrame,
    Submit,
    Tokens,
    Usage,
)
from loraplex.engine.request import Piece, Request, Submission
from loraplex.engine.waits import named


class FirstToken(NamedTuple):
    """Of a choice that runs on an adapter."""

    route: Route
    seconds: float
    """Since its request arrived."""


class Events:
    """An ordered collection of events; each request gets at most one final event."""

    def __init__(self) -> None:
        self.rejected: list[Rejected] = []
        self.tokens: list[Tokens] = []
        self.finished: list[Finished] = []
        self.failed: list[Failed] = []
        self.explained: list[Explained] = []
        self.first_tokens: list[FirstToken] = []
        """Of choices on adapters; told to nobody."""

    def __bool__(self) -> bool:
        return bool(self.rejected or self.tokens or self.finished or self.failed or self.explained)

    def add_rejected(self, submit: Submit, error: RequestRefused | EngineOverloaded) -> None:
        """The request never ran."""
        self.rejected.append(rejection(submit, error))

    def add_turned_away(self, submit: Submit, code: str, message: str) -> None:
        """The request could not be taken, through no fault of its own."""
        nothing = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)
        self.failed.append(
            Failed(request_id=submit.request_id, code=code, message=message, usage=nothing)
        )

    def add_withdrawn(self, submit: Submit) -> None:
        """The request was aborted before it waited for anything."""
        nothing = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)
        self.finished.append(
            Finished(request_id=submit.request_id, reason="abort", usage=nothing, queue_ms=0.0)
        )

    def explain(self, explained: Explained | None) -> None:
        """Answer a question; one about a request that has ended has its answer in that."""
        if explained is not None:
            self.explained.append(explained)

    def extend(self, later: "Events") -> None:
        """Take over all events of another collection."""
        self.rejected += later.rejected
        self.tokens += later.tokens
        self.finished += later.finished
        self.failed += later.failed
        self.explained += later.explained
        self.first_tokens += later.first_tokens

    def add_token(
        self,
        request: Request,
        token_id: int,
        piece: Piece,
        reason: Literal["stop", "length"] | None,
    ) -> None:
        """`token_id` is the newest token of a choice, `piece` what may be sent now, `reason` why
        the choice ends with it."""
        self.tokens.append(
            Tokens(
                request_id=request.request_id,
                choice=request.choice,
                sequence=request.num_output_tokens - 1,
                ids=(token_id,),
                text=piece.text,
                logprobs=piece.logprobs,
                finish_reason=reason,
            )
        )

    def add_finished(self, submission: Submission, reason: FinishReason) -> None:
        """All choices of the request have ended."""
        assert submission.waited_until_s is not None
        self.finished.append(
            Finished(
                request_id=submission.request_id,
                reason=reason,
                usage=submission.usage(),
                queue_ms=(submission.waited_until_s - submission.arrival_s) * 1e3,
                waited_ms=named(submission.waited_ms),
            )
        )

    def add_failed(self, submission: Submission, code: str, message: str) -> None:
        """The request failed alone, with all its choices."""
        self.failed.append(
            Failed(
                request_id=submission.request_id,
                code=code,
                message=message,
                usage=submission.usage(),
            )
        )

    def frame(self, epoch: str, step: int, request_ids: Iterable[str]) -> StepFrame:
        """The frame for one gateway: the events of its requests, in order."""
        mine = frozenset(request_ids)
        return StepFrame(
            epoch=epoch,
            step=step,
            rejected=tuple(e for e in self.rejected if e.request_id in mine),
            tokens=tuple(e for e in self.tokens if e.request_id in mine),
            finished=tuple(e for e in self.finished if e.request_id in mine),
            failed=tuple(e for e in self.failed if e.request_id in mine),
            explained=tuple(e for e in self.explained if e.request_id in mine),
        )

    def ended(self) -> list[str]:
        """Requests that have had their last event."""
        endings: tuple[Rejected | Finished | Failed, ...] = (
            *self.rejected,
            *self.finished,
            *self.failed,
        )
        return [ending.request_id for ending in endings]


def rejection(submit: Submit, error: RequestRefused | EngineOverloaded) -> Rejected:
    """What its gateway is told of a request that never ran."""
    code, field, retry_after_s = _told(error)
    return Rejected(
        request_id=submit.request_id,
        code=code,
        message=str(error),
        field=field,
        retry_after_s=retry_after_s,
    )


def _told(error: RequestRefused | EngineOverloaded) -> tuple[RejectionCode, str, float | None]:
    """Code, field and seconds until another try."""
    if isinstance(error, AdapterOverCap):
        return "over_cap", error.field, None
    if isinstance(error, RequestRefused):
        return "refused", error.field, None
    if isinstance(error, JournalUnavailable):
        return "journal_unavailable", "", error.retry_after_s
    is_late = isinstance(error, DeadlineUnreachable)
    return "late" if is_late else "overloaded", "", error.retry_after_s
