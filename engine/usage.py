"""What a request used. No torch."""

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What ran, counted by the engine in tokens."""

    prompt_tokens: int
    """Of the prompt, those that were computed: all of it, unless the request ended before."""
    cached_tokens: int
    """Prompt tokens served from the prefix cache."""
    completion_tokens: int
