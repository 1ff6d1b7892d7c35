"""Requests through a whole engine, and how long its steps took."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from loraplex.engine.core import StepReport
from loraplex.engine.plan import StepPlan
from loraplex.engine.protocol import Failed, Rejected, Sampling, Submit
from loraplex.platform.bench.errors import BenchFailed
from loraplex.platform.worker import EngineParts

TENANT = "bench"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; `adapter` is a digest, or None for the base model."""

    adapter: str | None
    prompt: tuple[int, ...]


@dataclass(slots=True)
class Answer:
    """What came of a batch of requests that were submitted at the same moment."""

    token_ids: list[list[int]]
    """Of each request, in the order of the requests."""
    first_token_s: float = 0.0
    """From submission to the end of the step that gave the first request its first token."""
    all_first_s: float = 0.0
    """The same of the last of them."""
    step_s: list[float] = field(default_factory=list)
    """Steps in which every request decoded one token and nothing else was computed."""

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all requests per second of decoding.

        Raises BenchFailed where no step decoded all of them.
        """
        if not self.step_s:
            raise BenchFailed(
                f"{len(self.token_ids)} requests never decoded together; ask fewer (--requests) or "
                "more of each (--new-tokens)"
            )
        return len(self.token_ids) * len(self.step_s) / sum(self.step_s)


class OnStep(Protocol):
    """Told of a step; `decodes` if every request decoded one token in it and nothing else ran."""

    def __call__(self, report: StepReport, *, decodes: bool) -> None:
        """Called right after the step."""
        ...


def ask_all(
    parts: EngineParts,
    asks: Sequence[Ask],
    new_tokens: int,
    on_step: OnStep | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Answer:
    """Submit all at once and step the engine until all have `new_tokens` tokens.

    `on_step` sees each step that computed something, within its time; ``clock`` is in seconds.
    Raises BenchFailed where a request fails.
    """
    ids = {f"request-{index}": index for index in range(len(asks))}
    answer = Answer([[] for _ in asks])
    started = clock()
    parts.mailbox.put(
        *(
            Submit(
                request_id=request_id,
                tenant=TENANT,
                adapter=asks[index].adapter,
                prompt=asks[index].prompt,
                sampling=Sampling(max_tokens=new_tokens, temperature=0.0, seed=0),
            )
            for request_id, index in ids.items()
        )
    )
    num_open = len(asks)
    while num_open:
        before = clock()
        report = parts.engine.step()
        decodes = bool(answer.token_ids[0]) and _decodes_all(report.plan, len(asks))
        if on_step is not None and report.plan.num_requests:
            on_step(report, decodes=decodes)
        if decodes:
            answer.step_s.append(clock() - before)
        num_open -= _take(report, ids, answer)
        if answer.first_token_s == 0 and answer.token_ids[0]:
            answer.first_token_s = clock() - started
        if answer.all_first_s == 0 and all(answer.token_ids):
            answer.all_first_s = clock() - started
        if not report.plan.num_requests and num_open:
            parts.mailbox.wait()
    return answer


def _decodes_all(plan: StepPlan, num_requests: int) -> bool:
    return plan.num_requests == plan.num_tokens == num_requests


def _take(report: StepReport, ids: dict[str, int], answer: Answer) -> int:
    """Note the step's tokens; return how many requests it ended."""
    failures: tuple[Failed | Rejected, ...] = (*report.events.failed, *report.events.rejected)
    for failed in failures:
        raise BenchFailed(f"{failed.request_id} failed: {failed.message}")
    for tokens in report.events.tokens:
        answer.token_ids[ids[tokens.request_id]].extend(tokens.ids)
    return len(report.events.finished)
