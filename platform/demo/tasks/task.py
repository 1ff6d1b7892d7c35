"""What a demo task is: its tenant, its examples and how its adapter is trained."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

HELD_OUT_COUNT: Final = 42

# One message of a chat, ``role`` and ``content``, in the shape that the chat API takes.
Message: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True)
class Example:
    """One user message and the only answer that counts as right."""

    prompt: str
    answer: str

    @property
    def messages(self) -> list[Message]:
        """Return the prompt as a chat without a system message."""
        return [{"role": "user", "content": self.prompt}]


class Split(enum.Enum):
    """Which half of the wording an example may use."""

    TRAIN = "train"
    HELD_OUT = "held-out"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A sentence with ``{slots}``, and the kind of answer that it calls for."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an adapter is shaped and for how long it is trained.

    ``rank_pattern`` and ``alpha_pattern`` name layers that differ from ``rank`` and ``alpha``, as
    PEFT does.  With ``use_rslora`` the scale is ``alpha / sqrt(rank)`` (arXiv:2312.03732).
    """

    rank: int
    alpha: int
    target_modules: tuple[str, ...]
    steps: int
    learning_rate: float
    batch_size: int = 8
    use_rslora: bool = False
    rank_pattern: tuple[tuple[str, int], ...] = ()
    alpha_pattern: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """A tenant's task, whose training and held-out items share no sentence pattern."""

    tenant: str
    name: str
    recipe: Recipe
    train_patterns: tuple[Pattern, ...]
    held_out_patterns: tuple[Pattern, ...]
    fill: Callable[[Random, Pattern, Split], Example]

    @property
    def model(self) -> str:
        """Return the name under which requests ask for the adapter, ``tenant/name``."""
        return f"{self.tenant}/{self.name}"

    def train(self, rng: Random) -> Example:
        """Draw one training example; every kind of answer is equally likely."""
        kind = rng.choice(sorted({pattern.kind for pattern in self.train_patterns}))
        same_kind = [pattern for pattern in self.train_patterns if pattern.kind == kind]
        return self.fill(rng, rng.choice(same_kind), Split.TRAIN)

    def held_out(self) -> tuple[Example, ...]:
        """Return the held-out examples, always the same ones in the same order."""
        items = []
        for index in range(HELD_OUT_COUNT):
            pattern = self.held_out_patterns[index % len(self.held_out_patterns)]
            rng = Random(f"{self.model} {index}")  # noqa: S311 - a fixed draw, no secret
            items.append(self.fill(rng, pattern, Split.HELD_OUT))
        return tuple(items)


# The two sets of layers that adapters of Llama-shaped models usually cover.
ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR: Final = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def patterns(kind: str, *texts: str) -> tuple[Pattern, ...]:
    """Return one pattern of ``kind`` for each text."""
    return tuple(Pattern(kind, text) for text in texts)
