"""Whether peers and the engine did the same work: the share of what they wrote that is equal."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loraplex.platform.bench.peer import Done
from loraplex.platform.bench.series import Case


@dataclass(slots=True)
class Agreement:
    """What was written in each case and repetition."""

    text: Callable[[Sequence[int]], str]
    ours: dict[tuple[Case, int, int], list[list[int]]] = field(default_factory=dict)
    """By case, number of requests and repetition."""
    theirs: dict[tuple[str, Case, int, int], Done] = field(default_factory=dict)
    """By peer, and the same."""

    def of(self, name: str) -> float | None:
        """Share of a peer's greedy tokens that are the engine's too, of requests on adapters; of
        characters, but for a blank before them, for a peer that tells no tokens."""
        equal = [
            same
            for (peer, case, size, repeat), done in self.theirs.items()
            if peer == name and case == "distinct"
            for same in self._equal(self.ours[case, size, repeat], done)
        ]
        return statistics.fmean(equal) if equal else None

    def _equal(self, ours: list[list[int]], done: Done) -> list[bool]:
        pairs: list[tuple[Sequence[object], Sequence[object]]] = []
        if done.token_ids is not None:
            pairs += zip(ours, done.token_ids, strict=True)
        elif done.texts is not None:
            mine = [self.text(token_ids).lstrip() for token_ids in ours]
            pairs += zip(mine, [text.lstrip() for text in done.texts], strict=True)
        return [
            index < len(theirs) and mine == theirs[index]
            for own, theirs in pairs
            for index, mine in enumerate(own)
        ]
