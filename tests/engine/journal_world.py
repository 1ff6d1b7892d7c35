"""A journal whose requests run as a test says, and all that a gateway would have been sent."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from loraplex.engine.events import Events
from loraplex.engine.journal import Journal
from loraplex.engine.journal_format import output_digest
from loraplex.engine.journal_protocol import JournalEntry, JournalQuery
from loraplex.engine.protocol import (
    Failed,
    Finished,
    FinishReason,
    Sampling,
    Submit,
    Tokens,
    Usage,
)


def submit(request_id: str, num_prompt: int = 3, n: int = 1, accepted_at_s: float = 0) -> Submit:
    return Submit(
        request_id=request_id,
        tenant="t",
        adapter=None,
        prompt=(1,) * num_prompt,
        sampling=Sampling(max_tokens=50, n=n, seed=1),
        accepted_at_s=accepted_at_s,
    )


@dataclass
class Request:
    num_prompt: int
    choices: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    @property
    def usage(self) -> Usage:
        """Of its end."""
        return Usage(
            prompt_tokens=self.num_prompt, cached_tokens=1, completion_tokens=self.num_tokens
        )

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.choices.values()))

    @property
    def digest(self) -> bytes:
        return output_digest(self.choices[choice] for choice in sorted(self.choices))


class JournalWorld:
    """One worker's journal; a folder may have another's before it."""

    def __init__(self, folder: Path, max_open: int = 8, now: float = 1e9) -> None:
        self.now = now
        self.folder = folder
        self.journal = Journal(folder, 7, max_open, self.clock)
        self.open: dict[str, Request] = {}
        self.ended: dict[str, Request] = {}

    def clock(self) -> float:
        self.now += 0.125
        return self.now

    def begin(self, request_id: str, num_prompt: int = 3, accepted_at_s: float = 0) -> None:
        self.journal.begin(submit(request_id, num_prompt, accepted_at_s=accepted_at_s))
        self.open[request_id] = Request(num_prompt)

    def step(self, *drawn: tuple[str, int, int]) -> None:
        """Tokens: request, choice, id."""
        events = Events()
        for request_id, choice, token_id in drawn:
            ids = self.open[request_id].choices[choice]
            events.tokens.append(
                Tokens(
                    request_id=request_id,
                    choice=choice,
                    sequence=len(ids),
                    ids=(token_id,),
                    text="secret",
                )
            )
            ids.append(token_id)
        self.journal.note(events)

    def end(self, request_id: str, reason: FinishReason | None = "stop") -> Finished | Failed:
        """None fails it."""
        request = self.open.pop(request_id)
        events = Events()
        if reason is None:
            failed = Failed(request_id=request_id, code="c", message="m", usage=request.usage)
            events.failed.append(failed)
        else:
            finished = Finished(request_id=request_id, reason=reason, usage=request.usage)
            events.finished.append(finished)
        self.journal.note(events)
        self.ended[request_id] = request
        return (events.finished or events.failed)[0]

    async def report(self, *request_ids: str) -> dict[str, JournalEntry]:
        report = await self.journal.report(JournalQuery(0, request_ids))
        return {entry.request_id: entry for entry in report.entries}

    async def since_s(self) -> float:
        return (await self.journal.report(JournalQuery(0, ()))).since_s

    def die(self) -> None:
        """As by kill -9: nothing more is written, and what was stays."""
        self.journal.abandon()
