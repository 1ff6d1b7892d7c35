"""What a worker and its PEFT process say to each other: one line of JSON each way."""

import msgspec

from loraplex.engine.self_test.comparison import Position
from loraplex.engine.self_test.prompts import TokenIds


class Check(msgspec.Struct, frozen=True):
    """Tell what PEFT makes of drawn tokens."""

    folder: str
    """Of the adapter's checkpoint."""
    drawn: tuple[tuple[TokenIds, TokenIds], ...]
    """Prompts, and the tokens that were drawn after them."""
    vocab_size: int | None = None
    """Tokens that the adapter has, where they are more than the base model's."""


class Checked(msgspec.Struct, frozen=True, tag="checked"):
    """The answer; a list of positions for each prompt."""

    positions: tuple[tuple[Position, ...], ...]
    versions: dict[str, str]


class CheckFailed(msgspec.Struct, frozen=True, tag="failed"):
    """There is none; the process goes on."""

    message: str


CheckAnswer = Checked | CheckFailed
