"""An assist that computes in the same process, when its answer is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from loraplex.adapters.weights import VerifiedAdapter
from loraplex.engine.assist_port import AssistLost


@dataclass
class FakeAsked:
    assist: "FakeAssist"
    number: int
    adapter: VerifiedAdapter
    paths: Sequence[str]
    x: Tensor

    @torch.inference_mode()
    def add_to(self, y: Tensor) -> None:
        if self.number in self.assist.lost:
            raise AssistLost
        first = 0
        for path in self.paths:
            width = self.assist.widths[path]
            if path in self.adapter.pairs:
                pair = self.adapter.pairs[path]
                update = (self.x.float() @ pair.a.float().T) @ pair.b.float().T
                y[:, first : first + width].add_(update, alpha=pair.scale)
            first += width


@dataclass
class FakeAssist:
    """Loses the answers whose numbers are in `lost`; refuses from number `refuses_from` on."""

    widths: dict[str, int]
    """Outputs of each linear layer of the base, by path."""
    lost: frozenset[int] = frozenset()
    refuses_from: int = 1 << 30
    num_ready: int = 1
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def ask(self, adapter: VerifiedAdapter, paths: Sequence[str], x: Tensor) -> FakeAsked:
        if not self.num_ready or len(self.asked) >= self.refuses_from:
            raise AssistLost
        self.asked.append(tuple(paths))
        return FakeAsked(self, len(self.asked) - 1, adapter, paths, x.clone())

    def lose_all(self) -> None:
        """All that has been asked."""
        self.lost = frozenset(range(len(self.asked)))

    def close(self) -> None:
        self.num_ready = 0
