"""From what users send to token ids, for one model. No torch, no transformers."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from tokenizers import Tokenizer

from loraplex.engine.protocol import ModelInfo
from loraplex.platform.chat_template import ChatTemplate
from loraplex.platform.errors import ContextLengthExceeded, InvalidRequest, TokenizerUnsupported
from loraplex.tenants.ids import Entropy

_NONCE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation that the assistant is to continue."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text to continue."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt that the client has encoded itself."""

    ids: tuple[int, ...]


Prompt = Chat | Text | TokenIds


@dataclass(frozen=True, slots=True)
class Draft:
    """A conversation on its way through a template."""

    messages: list[dict[str, str]]
    """What the template gets."""
    shown: Mapping[str, str]
    """Names that stand in it for text that users typed, and that text."""


class Prompts:
    """Tokenizer and chat template of one model.

    Text that a user typed never becomes a special token: `<|im_end|>` in a message is encoded as
    the characters it consists of, so that it cannot forge a turn. Conversations without such text
    have exactly the ids that transformers gives them.
    """

    def __init__(self, model: ModelInfo, now: Callable[[], datetime], entropy: Entropy) -> None:
        """`entropy` makes the names that special tokens have while user text is encoded.

        Raises:
            TokenizerUnsupported: the tokenizer's special tokens cannot be told from text.
        """
        self.model = model
        self._entropy = entropy
        self._tokenizer = _load(model.tokenizer_json)
        layout = msgspec.json.decode(model.tokenizer_json)
        self._aliases = _alias_specials(layout, entropy(_NONCE_BYTES).hex())
        self._aliased = _load(msgspec.json.encode(layout))
        self._check_aliases()
        self._special = _any_of(self._aliases)
        self._max_bytes_per_token = _max_bytes_per_token(layout)
        self._template = (
            None
            if model.chat_template is None
            else ChatTemplate(model.chat_template, model.special_tokens, now)
        )

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The token ids of a prompt; CPU-bound, see `prompts_of_engine`.

        Raises:
            InvalidRequest: it cannot be encoded, and which field is why.
            ContextLengthExceeded: it is so long that it cannot fit, found without encoding it.
        """
        match prompt:
            case Chat(messages):
                ids = self._encode_chat(messages)
            case Text(text):
                self._check_size(text, "prompt")
                ids = self._aliased.encode(text).ids
            case TokenIds(token_ids):
                ids = list(self.checked(token_ids, self.model.vocab_size))
        if not ids:
            field = "messages" if isinstance(prompt, Chat) else "prompt"
            raise InvalidRequest(f"{field} gives no token at all; send at least one.", field)
        return tuple(ids)

    def _encode_chat(self, messages: tuple[Message, ...]) -> list[int]:
        if self._template is None:
            raise InvalidRequest(
                f"The model {self.model.name} has no chat template; use /v1/completions.", "model"
            )
        draft = self.draft(messages)
        return self._encode_draft(draft, self._template.render(draft.messages))

    def draft(self, messages: tuple[Message, ...]) -> Draft:
        """A conversation as a template gets it. Where users typed the text of special tokens, that
        text is hidden: the special tokens that stand there afterwards are the template's."""
        if not any(self._special.search(message.content) for message in messages):
            return Draft([_variables(m.role, m.content) for m in messages], {})
        nonce = self._entropy(_NONCE_BYTES).hex()
        hidden = {literal: f"{nonce}x{number}x" for number, literal in enumerate(self._aliases)}
        return Draft(
            [_variables(m.role, _replace(self._special, hidden, m.content)) for m in messages],
            {name: literal for literal, name in hidden.items()},
        )

    def finish(self, draft: Draft, rendered: str) -> tuple[int, ...]:
        """The token ids of a draft that a template has rendered. CPU-bound; raises as `encode`."""
        ids = self._encode_draft(draft, rendered)
        if not ids:
            raise InvalidRequest("messages gives no token at all; send at least one.", "messages")
        return tuple(ids)

    def _encode_draft(self, draft: Draft, rendered: str) -> list[int]:
        if not draft.shown:
            self._check_size(rendered, "messages")
            return self._tokenizer.encode(rendered, add_special_tokens=False).ids
        # The template's special tokens get names that no user knows, and the text comes back.
        aliased = _replace(self._special, self._aliases, rendered)
        text = _replace(_any_of(draft.shown), draft.shown, aliased)
        self._check_size(text, "messages")
        return self._aliased.encode(text, add_special_tokens=False).ids

    def checked(self, ids: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
        """The ids, if all are below `vocab_size`. Raises InvalidRequest."""
        for index, token_id in enumerate(ids):
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(
                    f"Token id {token_id} at index {index} is not in the model's vocabulary; "
                    f"ids are 0 to {vocab_size - 1}.",
                    "prompt",
                )
        return ids

    def _check_size(self, text: str, param: str) -> None:
        """Refuse what surely does not fit: to encode megabytes would take seconds."""
        if self._max_bytes_per_token is None:
            return
        least = len(text.encode()) // self._max_bytes_per_token
        if least > self.model.max_model_len:
            raise ContextLengthExceeded(
                f"The prompt has more than {least} tokens, but the model's context is "
                f"{self.model.max_model_len} tokens; shorten it.",
                param,
            )

    def _check_aliases(self) -> None:
        for literal, alias in self._aliases.items():
            token_id = self._tokenizer.token_to_id(literal)
            if self._aliased.encode(alias, add_special_tokens=False).ids != [token_id]:
                raise TokenizerUnsupported(
                    f"The special token {literal!r} of model {self.model.name} cannot be renamed, "
                    "so user text could forge it."
                )


def _load(tokenizer_json: bytes) -> Tokenizer:
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    # Saved with some models; a prompt must be whole.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _alias_specials(layout: dict[str, Any], nonce: str) -> dict[str, str]:
    """Rename all special tokens in the layout of a tokenizer; return literal to new name.

    `encode_special_tokens` would not do: it leaves the literals in the vocabulary, where a
    unigram model finds them.
    """
    aliases: dict[str, str] = {}
    for token in layout["added_tokens"]:
        if token["special"]:
            aliases[token["content"]] = token["content"] = f"<|{nonce}-{token['id']}|>"
    model = layout["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {aliases.get(t, t): number for t, number in model["vocab"].items()}
    else:
        model["vocab"] = [[aliases.get(t, t), score] for t, score in model["vocab"]]
    if model.get("unk_token") in aliases:
        model["unk_token"] = aliases[model["unk_token"]]
    return aliases


def _max_bytes_per_token(layout: dict[str, Any]) -> int | None:
    """How much text one token can stand for; None where it is not known to be bounded.

    A byte-level vocabulary writes each byte as one character. Normalizers and tokens that take in
    the blanks around them can swallow any amount.
    """
    byte_level = (layout["decoder"] or {}).get("type") == "ByteLevel"
    greedy = any(token["lstrip"] or token["rstrip"] for token in layout["added_tokens"])
    if not byte_level or greedy or layout["normalizer"] is not None:
        return None
    literals = [token["content"] for token in layout["added_tokens"]]
    return max(map(len, [*layout["model"]["vocab"], *(t.encode() for t in literals)]))


def _variables(role: str, content: str) -> dict[str, str]:
    """A message as templates know it: they say `system` for what is `developer` in the API."""
    return {"role": "system" if role == "developer" else role, "content": content}


def _any_of(literals: Iterable[str]) -> re.Pattern[str]:
    """Match any of the literals, the longest first; nothing, if there are none."""
    ordered = sorted(literals, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)")


def _replace(pattern: re.Pattern[str], by: Mapping[str, str], text: str) -> str:
    return pattern.sub(lambda match: by[match[0]], text)


def num_chars(prompt: Prompt) -> int:
    """About how much work a prompt is to encode, in characters."""
    match prompt:
        case Chat(messages):
            # Each message costs about as much to render as this many characters to encode.
            return sum(len(message.content) + 64 for message in messages)
        case Text(text):
            return len(text)
        case TokenIds(ids):
            return len(ids) // 64
