"""What may be told of one choice: its text, and log-probabilities of the tokens that made it."""

import codecs
from collections import deque
from dataclasses import dataclass

from tokenizers import Tokenizer

from loraplex.engine.plan import Logprobs
from loraplex.engine.protocol import Alternative, Sampling, TokenLogprob
from loraplex.engine.request import Piece
from loraplex.engine.text import TextStream
from loraplex.engine.vocabulary import Vocabulary


class Transcript:
    """Text and log-probabilities of one choice; see `engine.request.Text`.

    The bytes of all log-probabilities together are the text. A token whose text is not returned,
    since a stop string or the end came first, has none; of a token that is returned in part, the
    bytes are that part.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, sampling: Sampling) -> None:
        self._text = TextStream(tokenizer, vocabulary, sampling.stop, sampling.min_tokens)
        self._logprobs = _LogprobStream(vocabulary)

    @property
    def stopped(self) -> bool:
        """True once a stop string has matched."""
        return self._text.stopped

    def push(self, token_id: int, logprobs: Logprobs | None) -> Piece:
        """Take one output token; return what can no longer become a stop string."""
        text = self._text.push(token_id)
        if logprobs is None:
            return Piece(text)
        self._logprobs.push(token_id, logprobs)
        return Piece(text, self._logprobs.take(len(text)))

    def end(self) -> Piece:
        """Return what was held back."""
        text = self._text.flush()
        return Piece(text, self._logprobs.take(len(text)) + self._logprobs.rest())


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A token whose text is not returned yet."""

    entry: TokenLogprob
    end: int
    """Characters of the text up to its end, one more if it ends within one."""
    before: bytes
    """Bytes of the character within which it begins."""


class _LogprobStream:
    """Holds log-probabilities back until the text of their tokens is returned."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._waiting: deque[_Waiting] = deque()
        self._num_chars = 0
        """Whole characters of all tokens so far."""
        self._num_returned = 0
        """Characters that were returned."""
        self._has_begun = False

    def push(self, token_id: int, logprobs: Logprobs) -> None:
        """Take the next token."""
        of = self._vocabulary
        data = of.data(token_id) if self._has_begun else of.first_data(token_id)
        self._has_begun = self._has_begun or bool(data)
        start, before = self._num_chars, self._decoder.getstate()[0]
        self._num_chars += len(self._decoder.decode(data or b""))
        is_within = bool(self._decoder.getstate()[0])
        name = of.name(token_id) if data is None else data.decode(errors="replace")
        top = tuple(Alternative(of.name(i), of.data(i), value) for i, value in logprobs.top)
        entry = TokenLogprob(Alternative(name, data, logprobs.drawn), start, top)
        self._waiting.append(_Waiting(entry, self._num_chars + is_within, before))

    def take(self, num_chars: int) -> tuple[TokenLogprob, ...]:
        """Entries of the tokens that are whole after another `num_chars` of text."""
        self._num_returned += num_chars
        taken = []
        while self._waiting and self._waiting[0].end <= self._num_returned:
            taken.append(self._waiting.popleft().entry)
        return tuple(taken)

    def rest(self) -> tuple[TokenLogprob, ...]:
        """The entry of the token that was returned in part, now that nothing follows."""
        if not self._waiting or self._waiting[0].entry.start >= self._num_returned:
            return ()
        waiting = self._waiting.popleft()
        entry, drawn = waiting.entry, waiting.entry.drawn
        data = _prefix(waiting.before, drawn.data or b"", self._num_returned - entry.start)
        cut = Alternative(data.decode(errors="replace"), data, drawn.logprob)
        return (TokenLogprob(cut, entry.start, entry.top),)


def _prefix(before: bytes, data: bytes, num_chars: int) -> bytes:
    """The shortest prefix of `data` that completes `num_chars` characters after `before`."""
    for length in range(len(data) + 1):
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        if len(decoder.decode(before + data[:length])) >= num_chars:
            return data[:length]
    return data
