"""Whether a tokenizer.json extends that of the base model: the same ids, and nothing else but added
tokens and what is put before and after a text.

Compared as JSON, before any tokenizer is built of it: a stranger's pre-tokenizer could hold an
expression that takes hours, but one that equals the base's does not.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
from tokenizers import Tokenizer

from loraplex.adapters import strict_json
from loraplex.adapters.profile import AddedToken

MAX_ADDED_TOKENS = 4096
MAX_TOKEN_CHARS = 256
_SAME = ("model", "normalizer", "pre_tokenizer", "decoder")
_FREE = frozenset({"version", "truncation", "padding", "added_tokens", "post_processor"})
# Written by some versions of the library and left out by others.
_DEFAULTS: Mapping[str, object] = MappingProxyType(
    {"ignore_merges": False, "byte_fallback": False, "fuse_unk": False, "dropout": None}
    | {"unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
)


@dataclass(frozen=True, slots=True)
class CheckedTokenizer:
    """What a tokenizer.json is beside the base's."""

    sha256: str | None
    """None if it does what the base's does."""
    problems: tuple[str, ...] = ()
    added: tuple[AddedToken, ...] = ()
    """Tokens that the base's does not have."""


def check(data: bytes, base_json: bytes, vocab_size: int) -> CheckedTokenizer:
    """Compare a tokenizer.json with the base's; never raises for what the bytes say.

    Ids of added tokens must be below `vocab_size`, that of the base's logits.
    """
    try:
        layout = msgspec.convert(strict_json.decode(data), dict[str, Any])
        base = msgspec.json.decode(base_json, type=dict[str, Any])
        added = _added(layout)
    except (ValueError, msgspec.ValidationError, KeyError, TypeError) as error:
        return CheckedTokenizer(None, (f"cannot be read: {error}",))
    problems = [*_differences(layout, base), *_ids(added, _added(base), vocab_size)]
    if problems:
        return CheckedTokenizer(None, tuple(problems))
    if added == _added(base) and layout.get("post_processor") == base.get("post_processor"):
        return CheckedTokenizer(None)
    try:
        tokenizer = Tokenizer.from_str(data.decode())
    except Exception as error:  # noqa: BLE001  the library raises Exception itself
        return CheckedTokenizer(None, (f"cannot be read: {error}",))
    others = [t for i, t in added.items() if tokenizer.token_to_id(t["content"]) != i]
    if others:
        return CheckedTokenizer(None, (f"token {others[0]['content']!r} has two ids",))
    new = tuple(
        AddedToken(token_id, token["content"], token["special"])
        for token_id, token in sorted(added.items())
        if token_id not in _added(base)
    )
    return CheckedTokenizer(hashlib.sha256(data).hexdigest(), added=new)


def added_ids(tokenizer_json: bytes) -> dict[str, int]:
    """Text and id of a tokenizer's added tokens."""
    layout = msgspec.json.decode(tokenizer_json, type=dict[str, Any])
    return {token["content"]: token["id"] for token in layout["added_tokens"]}


def _added(layout: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {token["id"]: token for token in layout["added_tokens"]}


def _differences(layout: dict[str, Any], base: dict[str, Any]) -> Iterator[str]:
    for name in sorted(layout.keys() - _FREE - set(_SAME)):
        yield f"{name[:80]} is not known"
    for name in _SAME:
        if _canonical(layout.get(name)) != _canonical(base.get(name)):
            yield (
                f"its {name} is not the base model's; an adapter's tokenizer may differ in "
                "added_tokens and post_processor alone"
            )


def _canonical(part: object) -> object:
    """The same for each way in which the library writes the same."""
    if not isinstance(part, dict):
        return part
    kept = {k: v for k, v in part.items() if k not in _DEFAULTS or v != _DEFAULTS[k]}
    merges = kept.get("merges")
    if isinstance(merges, list):
        kept["merges"] = [m.split(" ") if isinstance(m, str) else m for m in merges]
    return kept


def _ids(
    added: dict[int, dict[str, Any]], base: dict[int, dict[str, Any]], vocab_size: int
) -> Iterator[str]:
    for token_id, token in base.items():
        own = added.get(token_id, {})
        if (own.get("content"), own.get("special")) != (token["content"], token["special"]):
            yield f"token {token_id} is {own.get('content')!r}; the base's is {token['content']!r}"
    new = [token for token_id, token in added.items() if token_id not in base]
    if len(new) > MAX_ADDED_TOKENS:
        yield f"it adds {len(new)} tokens; at most {MAX_ADDED_TOKENS} are possible"
        return
    for token in new:
        content, token_id = token.get("content"), token["id"]
        if type(token.get("special")) is not bool:
            yield f"token {token_id} does not say whether it is special"
        elif not isinstance(content, str) or not 1 <= len(content) <= MAX_TOKEN_CHARS:
            yield f"token {token_id} needs 1 to {MAX_TOKEN_CHARS} characters"
        elif type(token_id) is not int or not 0 <= token_id < vocab_size:
            yield f"token {content!r} has id {token_id}; the base model's are below {vocab_size}"
