"""What each token adds to a text, as bytes. Pure; `tokenizers` decodes whole characters only."""

import re
from typing import Any

import msgspec
from tokenizers import Tokenizer

from loraplex.adapters.profile import AddedToken

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Vocabulary:
    """Bytes and names of a tokenizer's tokens.

    Byte-level tokenizers write bytes as characters (https://github.com/openai/gpt-2, `encoder.py`),
    those of the sentencepiece kind write a space as `▁` and a single byte as `<0xE2>`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        steps = _steps(msgspec.json.decode(tokenizer.to_str())["decoder"])
        self._byte_of = _byte_level() if any(s["type"] == "ByteLevel" for s in steps) else {}
        self._is_concatenated = [step["type"] for step in steps] == ["ByteLevel"]
        self._has_bytes = any(step["type"] == "ByteFallback" for step in steps)
        self._spaces = [space for step in steps if (space := _space(step))]
        self._known: dict[int, bytes | None] = {}
        self._strips_space = self._is_first_space_stripped()

    @property
    def is_byte_level(self) -> bool:
        """True where each token is a run of bytes, false where bytes have tokens of their own."""
        return bool(self._byte_of)

    @property
    def is_concatenated(self) -> bool:
        """True where a text is the bytes of its tokens, one behind the other, and nothing else."""
        return self._is_concatenated

    def added(self, token_id: int) -> AddedToken | None:  # noqa: ARG002  of those that know one
        """The token, if the tokenizer does not know it, but the request's adapter does."""
        return None

    def data(self, token_id: int) -> bytes | None:
        """What a token adds to a text, in UTF-8, perhaps a part of a character; None for special
        tokens, and nothing for ids beyond the tokenizer's."""
        if token_id not in self._known:
            self._known[token_id] = self._data(token_id)
        return self._known[token_id]

    def first_data(self, token_id: int) -> bytes | None:
        """The same for a token with which a text begins: some tokenizers drop a space there."""
        data = self.data(token_id)
        return data.removeprefix(b" ") if data and self._strips_space else data

    def name(self, token_id: int) -> str:
        """The token as text: half a character shows as U+FFFD, a special token by its name."""
        data = self.data(token_id)
        return str(self._added[token_id]) if data is None else data.decode(errors="replace")

    def _data(self, token_id: int) -> bytes | None:
        added = self._added.get(token_id)
        if added is not None and added.special:
            return None
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if self._byte_of and all(character in self._byte_of for character in piece):
            return bytes(self._byte_of[character] for character in piece)
        byte = _BYTE.fullmatch(piece) if self._has_bytes else None
        if byte is not None:
            return bytes([int(byte[1], 16)])
        if self._byte_of or self._spaces:
            for space in self._spaces:
                piece = piece.replace(space, " ")
            return piece.encode()
        text: str = self._tokenizer.decode([token_id])
        return text.encode()

    def _is_first_space_stripped(self) -> bool:
        for token_id in self._tokenizer.get_vocab(with_added_tokens=False).values():
            data = self.data(token_id)
            if data and re.fullmatch(rb" [a-z]+", data):
                return not self._tokenizer.decode([token_id]).startswith(" ")
        return False


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a decoder, those of sequences one by one."""
    if decoder is None:
        return []
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for part in decoder["decoders"] for step in _steps(part)]


def _space(step: dict[str, Any]) -> str | None:
    """What a decoding step replaces by a space."""
    if step["type"] == "Metaspace":
        return str(step["replacement"])
    if step["type"] == "Replace" and step["content"] == " " and "String" in step["pattern"]:
        return str(step["pattern"]["String"])
    return None


def _byte_level() -> dict[str, int]:
    """Byte of each character in which byte-level tokenizers write: printable bytes stand for
    themselves, others are moved above 255 in order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    moved = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(moved)
    }
