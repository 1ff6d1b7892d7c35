"""Log-probabilities as the two completion routes write them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from loraplex.engine.protocol import Alternative, TokenLogprob

MIN_LOGPROB = -9999.0
"""What OpenAI's API reports of tokens that cannot come, since JSON has no −∞."""


def chat_logprobs(entries: Sequence[TokenLogprob]) -> bytes:
    """`logprobs` of a chat choice."""
    content = [
        _token(entry.drawn) | {"top_logprobs": [_token(other) for other in entry.top]}
        for entry in entries
    ]
    return msgspec.json.encode({"content": content, "refusal": None})


def text_logprobs(entries: Sequence[TokenLogprob]) -> bytes:
    """`logprobs` of a text choice: four arrays with one element for each token."""
    return msgspec.json.encode(
        {
            "tokens": [_legacy_name(entry.drawn) for entry in entries],
            "token_logprobs": [_finite(entry.drawn.logprob) for entry in entries],
            "top_logprobs": [
                {_legacy_name(other): _finite(other.logprob) for other in (entry.drawn, *entry.top)}
                for entry in entries
            ],
            "text_offset": [entry.start for entry in entries],
        }
    )


def _token(token: Alternative) -> dict[str, Any]:
    return {
        "token": token.token,
        "logprob": _finite(token.logprob),
        "bytes": None if token.data is None else list(token.data),
    }


def _legacy_name(token: Alternative) -> str:
    r"""Tokens are told by their text alone here; half a character is `bytes:\xe2\x82`."""
    if token.data is None or token.data.decode(errors="replace").encode() == token.data:
        return token.token
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)


def _finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
