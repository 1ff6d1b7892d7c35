"""Prompts of a benchmark: random words, so that an engine that takes text reads the same tokens."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from loraplex.engine.model import LoadedModel, export_tokenizer

_WORD = re.compile(" [a-z]+")
_MIN_WORDS = 1000


@dataclass(frozen=True, slots=True)
class Prompts:
    """Draws prompts, the same for all contenders."""

    tokens: Sequence[int]
    tokenizer: Tokenizer
    seed: int

    @classmethod
    def of(cls, model: LoadedModel, seed: int) -> "Prompts":
        """Draw from tokens that are whole words with a blank before them, which are the same tokens
        again when their text is read; from all, where there are few such."""
        tokenizer = Tokenizer.from_buffer(export_tokenizer(model.path).tokenizer_json)
        ids = range(min(model.vocab_size, tokenizer.get_vocab_size()))
        texts = tokenizer.decode_batch([[token_id] for token_id in ids])
        words = [token_id for token_id, text in enumerate(texts) if _WORD.fullmatch(text)]
        again = tokenizer.encode_batch([texts[i] for i in words], add_special_tokens=False)
        stable = [i for i, read in zip(words, again, strict=True) if read.ids == [i]]
        return cls(
            stable if len(stable) >= _MIN_WORDS else range(model.vocab_size), tokenizer, seed
        )

    def draw(self, num_tokens: int, *what: int) -> tuple[int, ...]:
        """Return a prompt, another for each ``what``."""
        drawn = np.random.default_rng([self.seed, *what]).integers(
            len(self.tokens), size=num_tokens
        )
        return tuple(self.tokens[index] for index in drawn.tolist())

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))
