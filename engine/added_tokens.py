"""Tokens that adapters' tokenizers add to the base model's vocabulary, in the text of answers."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from tokenizers import Tokenizer

from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.profile import AddedToken
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.protocol import Submit
from loraplex.engine.transcript import Transcript
from loraplex.engine.vocabulary import Vocabulary

Resident: TypeAlias = Mapping[AdapterKey, AdapterWeights]
Arriving: TypeAlias = Mapping[AdapterKey, LoadProgress]
_NOTHING: Arriving = MappingProxyType({})


def transcripts(
    tokenizer: Tokenizer, resident: Resident, arriving: Arriving = _NOTHING
) -> Callable[[Submit], Transcript]:
    """Makes the texts of requests in the words of their adapters. `resident` has the adapters that
    steps may use, and `arriving` those that passes may; so one of them has that of a request
    whenever a token of it was drawn."""
    base = Vocabulary(tokenizer)

    def new_text(submit: Submit) -> Transcript:
        vocabulary = base
        if submit.adapter is not None:
            vocabulary = AdapterVocabulary(
                base, AdapterKey(submit.tenant, submit.adapter), resident, arriving
            )
        return Transcript(tokenizer, vocabulary, submit.sampling)

    return new_text


class AdapterVocabulary(Vocabulary):
    """The base's vocabulary with what one adapter adds; asked only while that is resident, or on
    its way and used by a pass."""

    def __init__(
        self,
        base: Vocabulary,
        key: AdapterKey,
        resident: Resident,
        arriving: Arriving = _NOTHING,
    ) -> None:
        self._base = base
        self._key = key
        self._resident = resident
        self._arriving = arriving

    @property
    def is_byte_level(self) -> bool:
        """See `Vocabulary.is_byte_level`."""
        return self._base.is_byte_level

    @property
    def is_concatenated(self) -> bool:
        """See `Vocabulary.is_concatenated`."""
        return self._base.is_concatenated

    def added(self, token_id: int) -> AddedToken | None:
        """See `Vocabulary.added`."""
        weights = self._resident.get(self._key)
        if weights is None:
            weights = self._arriving[self._key].early.weights
        added: AddedToken | None = weights.added_tokens.get(token_id)
        return added

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
