"""What an adapter is tested on: prompts of fixed tokens, and those that its config names."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loraplex.adapters.checkpoint import CONFIG_FILE

PROMPT_LENGTHS = (5, 17, 33)
"""One that fits a KV block, and two that go beyond one by a token, of the usual sizes."""
NUM_OUTPUT_TOKENS = 8
MAX_NAMED_TOKENS = 16
"""Of the tokens that a config names, so many are in a prompt."""

TokenIds = tuple[int, ...]


def make_prompts(
    vocab_size: int, max_model_len: int, named: Sequence[int] = ()
) -> tuple[TokenIds, ...]:
    """Three prompts: the first of spread tokens alone; in the middle of the second and the third
    stand those that the adapter names, in their order; the second also repeats itself.

    They are shortened where the model's context, `max_model_len`, needs it, and leave room for
    NUM_OUTPUT_TOKENS.
    """
    room = max(1, max_model_len - NUM_OUTPUT_TOKENS)
    short, middle, long = (min(length, room) for length in PROMPT_LENGTHS)
    known = [token for token in named if 0 <= token < vocab_size][:MAX_NAMED_TOKENS]
    motif = _spread(3, vocab_size)
    return (
        _spread(short, vocab_size),
        _around(known, (motif * middle)[:middle]),
        _around(known, _spread(long, vocab_size)),
    )


def named_tokens(folder: Path) -> tuple[int, ...]:
    """Tokens that the config of a stored adapter names: those that it retrained, and those that
    switch it on."""
    config: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_bytes())
    retrained = config.get("trainable_token_indices") or ()
    if isinstance(retrained, dict):
        retrained = [token for tokens in retrained.values() for token in tokens]
    return (*dict.fromkeys(retrained), *(config.get("alora_invocation_tokens") or ()))


def _spread(length: int, vocab_size: int) -> TokenIds:
    """Tokens from all over the vocabulary, the same for each model of its size."""
    return tuple((17 + 7919 * i + 104_729 * i * i) % vocab_size for i in range(length))


def _around(named: Sequence[int], prompt: TokenIds) -> TokenIds:
    """The prompt with the named tokens in the place of some in its middle, as far as they fit."""
    kept = named[: len(prompt)]
    start = (len(prompt) - len(kept)) // 2
    return (*prompt[:start], *kept, *prompt[start + len(kept) :])
