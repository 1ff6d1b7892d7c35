"""From output tokens to text that may be sent: whole characters only, nothing of a stop string."""

import codecs

from tokenizers import Tokenizer

from loraplex.engine.vocabulary import Vocabulary

_REPLACEMENT = "\ufffd"
_MAX_PENDING = 32
"""Tokens without a whole character before they are given up; the longest character has four."""


class TextStream:
    """The text of one request, token by token.

    The stop string that is complete first ends the text; if several are complete at the same
    character, the longest counts. The result does not depend on how tokens divide the text. Bytes
    of a character that is still incomplete at the end are dropped; bytes that are no character at
    all are U+FFFD, as is that character itself.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: Vocabulary,
        stop: tuple[str, ...] = (),
        min_tokens: int = 0,
    ) -> None:
        """Stop strings are looked for in what follows the first `min_tokens` tokens."""
        if "" in stop:
            raise ValueError("a stop string is empty; it would stop every request at once")
        self._characters = (
            _ByteCharacters(vocabulary)
            if vocabulary.is_concatenated
            else _Characters(tokenizer, vocabulary)
        )
        self._stop = stop
        self._num_unstoppable = min_tokens
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """True once a stop string has matched; text and tokens after it are ignored."""
        return self._stopped

    def push(self, token_id: int) -> str:
        """Take one output token; return the text that can no longer become a stop string."""
        if self._stopped:
            return ""
        text = self._characters.push(token_id)
        if not self._stop:
            return text
        text = self._held + text
        if self._num_unstoppable:
            self._num_unstoppable -= 1
            return text
        end = self._first_stop(text)
        if end is not None:
            self._stopped, self._held = True, ""
            return text[:end]
        start = self._undecided(text)
        self._held = text[start:]
        return text[:start]

    def flush(self) -> str:
        """Return what was held back, since nothing follows that could complete a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> int | None:
        """Where the text is cut, or None if no stop string is complete."""
        found = [(text.find(stop), len(stop)) for stop in self._stop]
        matches = [(start + length, start) for start, length in found if start >= 0]
        return min(matches)[1] if matches else None

    def _undecided(self, text: str) -> int:
        """Where the longest suffix begins that a stop string might continue."""
        longest = max(map(len, self._stop), default=0) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stop):
                return start
        return len(text)


class _ByteCharacters:
    """Joins the bytes of tokens, where a tokenizer's decoder does nothing else."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take one token; return the whole characters that it adds."""
        added = self._vocabulary.added(token_id)
        if added is None:
            return self._bytes.decode(self._vocabulary.data(token_id) or b"")
        if added.is_special:
            return ""
        return self._bytes.decode(b"", final=True) + added.text


class _Characters:
    """Decodes tokens a window at a time, for a character may span tokens and its spacing may hang
    on the token before. (`tokenizers.DecodeStream` would raise on invalid bytes and lose the text
    that a token holds before an incomplete character.)

    Window: [tokens whose text is out | tokens that are pending].
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        """Knows whether the bytes so far end within a character."""
        self._window: list[int] = []
        self._num_context = 0
        self._num_out = 0
        """Characters of the window's text that are out."""

    def push(self, token_id: int) -> str:
        """Take one token; return the whole characters that it adds."""
        added = self._vocabulary.added(token_id)
        if added is not None:
            return "" if added.is_special else self._break() + added.text
        self._window.append(token_id)
        self._bytes.decode(self._vocabulary.data(token_id) or b"")
        text = self._decode()
        whole = self._whole(text)
        new = whole[self._num_out :]
        self._num_out += len(new)
        if len(self._window) - self._num_context >= _MAX_PENDING or (new and whole == text):
            self._advance()
        return new

    def _break(self) -> str:
        """End an incomplete character, which what comes next cannot complete."""
        text = self._decode()[self._num_out :]
        if self._bytes.getstate()[0]:
            self._bytes.reset()
            self._window.clear()
        self._advance()
        return text

    def _whole(self, text: str) -> str:
        """The text without an incomplete character, which decodes to U+FFFD at the end: to one, to
        two if it is half a surrogate, or, in vocabularies with tokens for single bytes, to one for
        each byte around it."""
        pending = self._bytes.getstate()[0]
        if not pending:
            return text
        if self._vocabulary.is_byte_level:
            return text.removesuffix(pending.decode("utf-8", "replace"))
        return text.rstrip(_REPLACEMENT)

    def _advance(self) -> None:
        self._window = self._window[self._num_context :]
        self._num_context = len(self._window)
        self._num_out = len(self._decode())

    def _decode(self) -> str:
        text: str = self._tokenizer.decode(self._window, skip_special_tokens=True)
        return text
