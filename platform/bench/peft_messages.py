"""What a benchmark and its PEFT process tell each other: one line of JSON per message."""

import msgspec


class Start(msgspec.Struct, frozen=True):
    """What to load."""

    model: str
    """Folder of the base model."""
    adapters: list[str]
    """Folders; an adapter's name is its index."""
    dtype: str
    device: str
    threads: int


class Started(msgspec.Struct, frozen=True):
    """All is loaded."""

    peft: str
    transformers: str

    def __str__(self) -> str:
        """Versions of both."""
        return f"{self.peft}, transformers {self.transformers}"


class Batch(msgspec.Struct, frozen=True):
    """Requests to run together, greedily; prompts of equal length."""

    adapters: list[int]
    """Index of each row's adapter."""
    prompts: list[tuple[int, ...]]
    new_tokens: int


class Done(msgspec.Struct, frozen=True):
    """What came of a batch."""

    token_ids: list[list[int]]
    step_s: list[float]
    """Seconds of each decode step, the prompt's not among them."""
