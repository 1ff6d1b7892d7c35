"""Tokens that adapters' tokenizers add to the base model's vocabulary, in the text of answers."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from tokenizers import Tokenizer

from loraplex.adapters.profile import AddedToken
from loraplex.engine.protocol import Submit
from loraplex.engine.transcript import Transcript
from loraplex.engine.vocabulary import Vocabulary

_NONE: Mapping[int, AddedToken] = MappingProxyType({})


class AddedTokens:
    """By digest, of the adapters that were read. Written by the threads that read adapters, before
    anything runs on one; few have any."""

    def __init__(self) -> None:
        self._by_digest: dict[str, Mapping[int, AddedToken]] = {}

    def note(self, digest: str, tokens: Iterable[AddedToken]) -> None:
        """Remember what an adapter adds."""
        if by_id := {token.id: token for token in tokens}:
            self._by_digest[digest] = by_id

    def of(self, digest: str) -> Mapping[int, AddedToken]:
        """What an adapter adds, by token id."""
        return self._by_digest.get(digest, _NONE)


def transcripts(tokenizer: Tokenizer, tokens: AddedTokens) -> Callable[[Submit], Transcript]:
    """Makes the texts of requests in the words of their adapters."""
    base = Vocabulary(tokenizer)

    def new_text(submit: Submit) -> Transcript:
        adapter = submit.adapter
        vocabulary = base if adapter is None else AdapterVocabulary(base, tokens, adapter)
        return Transcript(tokenizer, vocabulary, submit.sampling)

    return new_text


class AdapterVocabulary(Vocabulary):
    """The base's vocabulary with what one adapter adds; asked only once the adapter was read."""

    def __init__(self, base: Vocabulary, tokens: AddedTokens, digest: str) -> None:
        self._base = base
        self._tokens = tokens
        self._digest = digest

    @property
    def is_byte_level(self) -> bool:
        """See `Vocabulary.is_byte_level`."""
        return self._base.is_byte_level

    def added(self, token_id: int) -> AddedToken | None:
        """See `Vocabulary.added`."""
        return self._tokens.of(self._digest).get(token_id)

    def data(self, token_id: int) -> bytes | None:
        """See `Vocabulary.data`."""
        token = self.added(token_id)
        if token is None:
            return self._base.data(token_id)
        return None if token.is_special else token.text.encode()

    def first_data(self, token_id: int) -> bytes | None:
        """See `Vocabulary.first_data`."""
        if self.added(token_id) is None:
            return self._base.first_data(token_id)
        return self.data(token_id)

    def name(self, token_id: int) -> str:
        """See `Vocabulary.name`."""
        token = self.added(token_id)
        return self._base.name(token_id) if token is None else token.text
