"""What an adapter is tested on: prompts of fixed tokens, and those that its config names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.config_reader import MAX_INVOCATION_TOKENS

PROMPT_LENGTHS = (5, 17, 33)
"""One that fits a KV block, and two that go beyond one by a token, of the usual sizes."""
NUM_OUTPUT_TOKENS = 8
MAX_OWN_TOKENS = 16
"""Of the tokens that an adapter retrained or added, so many are in a prompt."""

MAX_PROMPT_TOKENS = max(PROMPT_LENGTHS) + MAX_OWN_TOKENS + MAX_INVOCATION_TOKENS
"""Dense attention takes memory by the square of it."""

TokenIds: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProbePrompt:
    """A prompt of a test."""

    ids: TokenIds
    adapter_start: int = 0
    """Where the adapter begins to act, as in `Submit`."""


def make_prompts(
    config: AdapterConfig, vocab_size: int, max_model_len: int, num_added: int = 0
) -> tuple[ProbePrompt, ...]:
    """Three prompts that are the same for each model and adapter, but for what the adapter names:
    tokens that switch it on stand in the middle of all, those that it retrained or added to the
    base's, `num_added`, in the middle of the last two. The second repeats itself.

    None is longer than MAX_PROMPT_TOKENS, and all leave room for NUM_OUTPUT_TOKENS in the model's
    context, `max_model_len` tokens.
    """
    short, middle, long = PROMPT_LENGTHS
    motif = _spread(3, vocab_size)
    plain = (_spread(short, vocab_size), (motif * middle)[:middle], _spread(long, vocab_size))
    own = [token for tokens in config.trainable_tokens for token in tokens.indices]
    own += range(vocab_size, vocab_size + num_added)
    known = tuple(token for token in dict.fromkeys(own) if token < vocab_size + num_added)
    named = ((), known[:MAX_OWN_TOKENS], known[-MAX_OWN_TOKENS:])
    room = min(max(1, max_model_len - NUM_OUTPUT_TOKENS), MAX_PROMPT_TOKENS)
    return tuple(
        _prompt(around, (*tokens, *config.invocation_tokens), config.invocation_tokens, room)
        for around, tokens in zip(plain, named, strict=True)
    )


def _spread(length: int, vocab_size: int) -> TokenIds:
    """Tokens from all over the vocabulary."""
    return tuple((17 + 7919 * i + 104_729 * i * i) % vocab_size for i in range(length))


def _prompt(
    around: TokenIds, inside: Sequence[int], invocation: TokenIds, room: int
) -> ProbePrompt:
    half = len(around) // 2
    ids = (*around[:half], *inside, *around[half:])[-room:]
    starts = [
        start for start in range(len(ids)) if ids[start : start + len(invocation)] == invocation
    ]
    return ProbePrompt(ids, starts[-1] if invocation and starts else 0)
