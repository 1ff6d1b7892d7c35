"""Text of output tokens by the tokenizer of each request's adapter, where that brings its own."""

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock

from tokenizers import Tokenizer

from loraplex.adapters.errors import AdapterError
from loraplex.adapters.storage import Store, read_tokenizer
from loraplex.engine.plan import Logprobs
from loraplex.engine.protocol import Sampling, Submit
from loraplex.engine.request import Piece, Text
from loraplex.engine.transcript import Transcript
from loraplex.engine.vocabulary import Vocabulary

_log = logging.getLogger(__name__)

MAX_KNOWN = 256
"""Adapters whose tokenizer, own or the base's, is at hand."""
MAX_OWN = 16
"""Tokenizers of adapters in memory; a large one takes some hundred MiB."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """What turns tokens into text."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary

    @classmethod
    def of(cls, tokenizer_json: bytes) -> "Decoding":
        """Read a tokenizer.json."""
        tokenizer = Tokenizer.from_buffer(tokenizer_json)
        return cls(tokenizer, Vocabulary(tokenizer))

    def transcript(self, sampling: Sampling) -> Transcript:
        """The text of one choice."""
        return Transcript(self.tokenizer, self.vocabulary, sampling)


class OwnTokenizers:
    """Tokenizers by digest of adapter. They are read with the adapter, before a step needs them."""

    def __init__(self, base: Decoding, store: Store) -> None:
        self._base = base
        self._store = store
        self._known: OrderedDict[str, Decoding] = OrderedDict()
        """By digest, used last at the end."""
        self._lock = Lock()

    def learn(self, digest: str) -> None:
        """Read what an adapter brings, whose files are on this machine.

        Raises:
            AdapterMissing, AdapterCorrupt, OSError: they cannot be read.
        """
        with self._lock:
            if digest in self._known:
                self._known.move_to_end(digest)
                return
        data = read_tokenizer(self._store.open(digest), digest)
        found = self._base if data is None else Decoding.of(data)
        with self._lock:
            self._known[digest] = found
            self._forget()

    def of(self, digest: str) -> Decoding:
        """What decodes an adapter's tokens. One that was learned long ago is read again."""
        found = self._known.get(digest)
        if found is not None:
            return found
        try:
            self.learn(digest)
        except (AdapterError, OSError) as error:
            _log.error("tokenizer of adapter %s cannot be read again: %s", digest, error)
        return self._known.get(digest, self._base)

    def new_text(self, submit: Submit) -> Text:
        """The text of a choice of this request. Raises ValueError for a stop string that is empty,
        whoever decodes it."""
        text = self._base.transcript(submit.sampling)
        return text if submit.adapter is None else _OwnText(self, submit.adapter, submit.sampling)

    def _forget(self) -> None:
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        own = [digest for digest, found in self._known.items() if found is not self._base]
        for digest in own[:-MAX_OWN]:
            del self._known[digest]


@dataclass(slots=True)
class _OwnText:
    """A transcript that begins with the first token: only then the adapter has surely been read."""

    tokenizers: OwnTokenizers
    digest: str
    sampling: Sampling
    begun: Transcript | None = field(default=None, init=False)

    @property
    def stopped(self) -> bool:
        return self.begun is not None and self.begun.stopped

    def push(self, token_id: int, logprobs: Logprobs | None) -> Piece:
        if self.begun is None:
            self.begun = self.tokenizers.of(self.digest).transcript(self.sampling)
        return self.begun.push(token_id, logprobs)

    def end(self) -> Piece:
        return Piece() if self.begun is None else self.begun.end()
