import codecs
from itertools import pairwise, product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests import tiny_models
from tokenizers import Tokenizer, decoders, models

from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.placement import EarlyAdapter
from loraplex.adapters.profile import AddedToken
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.added_tokens import AdapterVocabulary
from loraplex.engine.text import TextStream
from loraplex.engine.vocabulary import Vocabulary

BYTE_LEVEL = tiny_models.make_tokenizer().backend_tokenizer
BYTES = Vocabulary(BYTE_LEVEL)
SPECIAL = BYTE_LEVEL.token_to_id("<|end|>")
WINDOWED = Tokenizer.from_str(BYTE_LEVEL.to_str())
WINDOWED.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
WINDOWED_BYTES = Vocabulary(WINDOWED)
"""The same, but so much may be done by its decoder that all is decoded by that."""
SAMPLES = ["plain text, ", "naïve é ", "日本語の文 ", "👩\u200d👧\u200d👦🇩🇪 "]
SAMPLES += ["\ufffd", "\ufffd\ufffd.", "e\u0301a\u0308 ", "\n\t", "\u202eabc", "zu\u0308rich"]
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXTS = st.lists(st.sampled_from(SAMPLES) | st.text(CHARACTERS, max_size=6), max_size=8).map(
    "".join
)


def byte_fallback():
    """Tokenizer of the sentencepiece kind: words, and bytes for what is not in the vocabulary."""
    vocab = {"<unk>": 0, "▁hello": 1, "▁world": 2, "!": 3}
    vocab |= {f"<0x{byte:02X}>": 4 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return tokenizer


def letters():
    """Tokenizer with a token for each word of one to three letters of `abc`."""
    words = ["".join(word) for size in (1, 2, 3) for word in product("abc", repeat=size)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "a"))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


LETTERS = letters()
LETTER_BYTES = Vocabulary(LETTERS)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def pieces(ids, stop=(), tokenizer=BYTE_LEVEL, vocabulary=None):
    """What a stream emits for each token, and at the end."""
    stream = TextStream(tokenizer, vocabulary or Vocabulary(tokenizer), tuple(stop))
    found = [stream.push(token_id) for token_id in ids]
    return [*found, stream.flush()], stream


def cut(text, stops):
    """Reference: the text before the stop that is complete first, of those the longest."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)], True
    return text, False


@st.composite
def divided(draw):
    """A text and its tokens, encoded in chunks of random lengths."""
    text = draw(TEXTS)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)) | {0, len(text)})
    chunks = [text[start:end] for start, end in pairwise(cuts)]
    return text, [i for chunk in chunks for i in BYTE_LEVEL.encode(chunk).ids]


@given(divided())
def test_without_stops_the_text_is_the_decoded_whole(sample):
    text, ids = sample
    emitted, stream = pieces(ids)
    assert "".join(emitted) == BYTE_LEVEL.decode(ids) == text
    assert not stream.stopped


@given(divided())
def test_no_piece_holds_half_a_character(sample):
    text, ids = sample
    emitted, _ = pieces(ids)
    assert "".join(emitted).count("\ufffd") == text.count("\ufffd")


def test_replacement_characters_that_the_model_writes_come_at_once_and_can_stop():
    ids = BYTE_LEVEL.encode("a\ufffd").ids
    assert "".join(pieces(ids)[0][:-1]) == "a\ufffd"
    emitted, stream = pieces([*ids, *ids], ["\ufffda"])
    assert ("".join(emitted), stream.stopped) == ("a", True)


def test_of_a_replacement_character_and_half_another_character_the_first_is_returned():
    ids = BYTE_LEVEL.encode("\ufffd👩").ids
    assert "".join(pieces(ids[:-1])[0]) == "\ufffd"


@given(st.lists(st.text("abc", min_size=1, max_size=3), max_size=12), STOPS)
def test_the_first_complete_stop_cuts_the_text_however_tokens_divide_it(tokens, stops):
    emitted, stream = pieces(map(LETTERS.token_to_id, tokens), stops, LETTERS)
    assert ("".join(emitted), stream.stopped) == cut("".join(tokens), stops)


@given(
    divided(),
    st.lists(st.sampled_from(SAMPLES) | st.text(CHARACTERS, min_size=1, max_size=3), max_size=3),
)
def test_stops_may_hold_any_characters(sample, stops):
    text, ids = sample
    emitted, stream = pieces(ids, stops)
    assert ("".join(emitted), stream.stopped) == cut(text, stops)


@given(st.lists(st.text("abc", min_size=1, max_size=3), max_size=12), STOPS)
def test_text_that_cannot_become_a_stop_is_not_held_back(tokens, stops):
    emitted, _ = pieces(map(LETTERS.token_to_id, tokens), stops, LETTERS)
    held = emitted[-1]
    assert not held or any(stop.startswith(held) for stop in stops)


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=30))
@example([171, 96])  # the first two bytes of a surrogate
def test_rubbish_decodes_as_a_whole_would(ids):
    emitted, _ = pieces(ids)
    data = b"".join(BYTES.data(i) or b"" for i in ids)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    assert "".join(emitted) == decoder.decode(data)


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() + 1), max_size=30), STOPS)
@example([171, 96], [])
def test_bytes_are_joined_as_the_tokenizer_would_join_them_piece_by_piece(ids, stops):
    assert (BYTES.is_concatenated, WINDOWED_BYTES.is_concatenated) == (True, False)
    assert pieces(ids, stops, BYTE_LEVEL, BYTES)[0] == pieces(ids, stops, WINDOWED)[0]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 259), max_size=40))
def test_rubbish_of_a_byte_fallback_tokenizer_never_raises(ids):
    pieces(ids, tokenizer=byte_fallback())


def test_spaces_between_words_survive_a_byte_fallback_tokenizer():
    emitted, _ = pieces([1, 2, 3, 2], tokenizer=byte_fallback())
    assert emitted == ["hello", " world", "!", " world", ""]


def test_a_character_comes_with_its_last_byte():
    ids = BYTE_LEVEL.encode("👩").ids
    assert len(ids) == 4
    assert pieces(ids)[0] == ["", "", "", "👩", ""]


def test_an_incomplete_character_at_the_end_is_dropped():
    ids = BYTE_LEVEL.encode("ok👩").ids
    assert "".join(pieces(ids[:-1])[0]) == "ok"


def test_special_tokens_have_no_text():
    ids = [*BYTE_LEVEL.encode("one").ids, SPECIAL, *BYTE_LEVEL.encode(" two").ids]
    assert "".join(pieces(ids)[0]) == "one two"


def test_the_start_of_a_stop_is_held_until_it_is_decided():
    stream = TextStream(BYTE_LEVEL, BYTES, ("END",))
    assert [stream.push(i) for i in BYTE_LEVEL.encode("aENE").ids] == ["a", "", "", "EN"]
    assert stream.flush() == "E"
    assert stream.flush() == ""


def test_after_a_stop_nothing_follows():
    stream = TextStream(BYTE_LEVEL, BYTES, ("b",))
    emitted = [stream.push(i) for text in "aabcd" for i in BYTE_LEVEL.encode(text).ids]
    assert stream.stopped
    assert "".join(emitted) + stream.flush() == "aa"


def test_a_stop_is_looked_for_behind_the_first_min_tokens_tokens():
    stream = TextStream(LETTERS, LETTER_BYTES, ("ab",), min_tokens=3)
    emitted = [stream.push(LETTERS.token_to_id(word)) for word in ("ab", "c", "a", "b", "cab", "c")]
    assert emitted == ["ab", "c", "a", "b", "c", ""]
    assert stream.stopped


def test_an_empty_stop_is_refused():
    with pytest.raises(ValueError, match="empty"):
        TextStream(BYTE_LEVEL, BYTES, ("",))


class CountingTokenizer:
    """Remembers how many tokens were decoded at a time."""

    def __init__(self):
        self.largest = 0

    def decode(self, ids, skip_special_tokens):
        self.largest = max(self.largest, len(ids))
        return WINDOWED.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("token_id", [SPECIAL, BYTE_LEVEL.encode("👩").ids[-1]])
def test_endless_tokens_without_a_character_cost_no_more_each(token_id):
    tokenizer = CountingTokenizer()
    pieces([token_id] * 500, tokenizer=tokenizer, vocabulary=WINDOWED_BYTES)
    assert 0 < tokenizer.largest <= 64


def test_tokens_that_an_adapter_adds_are_text_unless_they_are_special() -> None:
    new = BYTE_LEVEL.get_vocab_size()
    plain, special = (
        AddedToken(new, "<tool>", is_special=False),
        AddedToken(new + 1, "<end>", is_special=True),
    )
    key, other = AdapterKey("tenant", "digest"), AdapterKey("tenant", "other")
    resident = {
        key: AdapterWeights(0, {}, added_tokens={plain.id: plain, special.id: special}),
        other: AdapterWeights(0, {}),
    }
    vocabulary = AdapterVocabulary(BYTES, key, resident)
    stream = TextStream(BYTE_LEVEL, vocabulary)
    half, *rest = BYTE_LEVEL.encode("é").ids
    ids = [*BYTE_LEVEL.encode("a b").ids, new, *BYTE_LEVEL.encode(" c").ids, new + 1]
    ids += [half, new + 1, *rest, half, new, *BYTE_LEVEL.encode("d").ids]
    text = "".join(stream.push(token_id) for token_id in ids) + stream.flush()
    extended = Tokenizer.from_str(BYTE_LEVEL.to_str())
    extended.add_tokens(["<tool>"])
    extended.add_special_tokens(["<end>"])
    assert text == extended.decode(ids) == "a b<tool> cé\ufffd<tool>d"
    assert vocabulary.data(new) == vocabulary.first_data(new) == b"<tool>"
    assert (vocabulary.data(new + 1), vocabulary.name(new + 1)) == (None, "<end>")
    assert AdapterVocabulary(BYTES, other, resident).data(new) == b""


def test_tokens_are_added_by_an_adapter_that_a_pass_uses_while_it_is_on_its_way() -> None:
    new = BYTE_LEVEL.get_vocab_size()
    key, resident, progress = AdapterKey("tenant", "digest"), {}, LoadProgress()
    weights = AdapterWeights(0, {}, added_tokens={new: AddedToken(new, "<tool>", is_special=False)})
    progress.open(1, EarlyAdapter(weights, None, {}))
    arriving = {key: progress}
    vocabulary = AdapterVocabulary(BYTES, key, resident, arriving)
    assert vocabulary.data(new) == b"<tool>"
    resident[key] = weights
    del arriving[key]
    assert vocabulary.data(new) == b"<tool>"
