"""Prompts of a wanted length, made up; each differs from the others from its first words on."""

import numpy as np

_WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city name team minute idea kid body information back parent face level "
    "office door health person art war history party result change morning reason research girl "
    "guy moment air teacher force education"
)


def make_prompt(num_tokens: int, seed: tuple[int, ...]) -> str:
    """Return `num_tokens` common words, most of which are one token to a tokenizer of English.

    What it was in the end is what the server counted: `prompt_tokens` of the usage.
    """
    words = _WORDS.split()
    drawn = np.random.default_rng(seed).integers(len(words), size=num_tokens)
    return " ".join(words[index] for index in drawn)
