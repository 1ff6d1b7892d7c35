"""Log-probabilities are told for what was returned: their bytes are the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.test_text import (
    BYTE_LEVEL,
    LETTERS,
    SAMPLES,
    SPECIAL,
    byte_fallback,
    divided,
)
from tokenizers import AddedToken, Tokenizer

from loraplex.engine.plan import Logprobs
from loraplex.engine.protocol import Sampling, TokenLogprob
from loraplex.engine.transcript import Transcript
from loraplex.engine.vocabulary import Vocabulary

FALLBACK = byte_fallback()


def transcript(tokenizer: Tokenizer = BYTE_LEVEL, **sampling: object) -> Transcript:
    values = {"max_tokens": 100, "seed": 0} | sampling
    return Transcript(tokenizer, Vocabulary(tokenizer), Sampling(**values))


def told(
    ids: list[int], tokenizer: Tokenizer = BYTE_LEVEL, **sampling: object
) -> tuple[str, list[TokenLogprob]]:
    """Text and entries of a whole choice; token number i has log-probability -i."""
    stream = transcript(tokenizer, **sampling)
    text, entries = "", []
    for place, token_id in enumerate(ids):
        if stream.stopped:
            break
        piece = stream.push(token_id, Logprobs(-float(place)))
        text += piece.text
        entries += piece.logprobs
        num_told = len(bytes_of(entries).decode(errors="replace"))
        assert num_told <= len(text), "told before it was returned"
    end = stream.end()
    return text + end.text, entries + list(end.logprobs)


def bytes_of(entries: list[TokenLogprob]) -> bytes:
    return b"".join(entry.drawn.data or b"" for entry in entries)


def byte_ids(text: str, tokenizer: Tokenizer = BYTE_LEVEL) -> list[int]:
    return list(tokenizer.encode(text).ids)


@given(
    divided(),
    st.lists(st.sampled_from(SAMPLES) | st.text(min_size=1, max_size=3), max_size=3),
    st.integers(0, 5),
)
def test_the_bytes_of_all_log_probabilities_are_the_text(sample, stops, min_tokens):
    _, ids = sample
    text, entries = told(ids, stop=tuple(stops), min_tokens=min_tokens)
    assert bytes_of(entries) == text.encode()
    assert [entry.drawn.logprob for entry in entries] == [-float(i) for i in range(len(entries))]


@given(divided())
def test_each_entry_tells_where_in_the_text_it_starts(sample):
    _, entries = told(sample[1])
    data = b""
    for entry in entries:
        assert entry.start == len(data.decode(errors="ignore"))
        data += entry.drawn.data


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=30))
def test_bytes_that_are_no_character_show_in_the_text_as_replacements(ids):
    text, entries = told(ids)
    assert bytes_of(entries).decode(errors="replace").rstrip("\ufffd") == text.rstrip("\ufffd")


def test_half_a_character_has_its_own_bytes():
    text, entries = told(byte_ids("👩"))
    assert text == "👩"
    assert [entry.drawn.data for entry in entries] == [b"\xf0", b"\x9f", b"\x91", b"\xa9"]
    assert {entry.drawn.token for entry in entries} == {"\ufffd"}
    assert {entry.start for entry in entries} == {0}


def test_half_a_character_at_the_end_is_neither_text_nor_told():
    text, entries = told(byte_ids("ok👩")[:-1])
    assert text == "ok"
    assert bytes_of(entries) == b"ok"


def test_entries_wait_until_their_text_cannot_become_a_stop_string():
    stream = transcript(stop=("END",))
    pieces = [stream.push(i, Logprobs(0.0)) for i in byte_ids("aENE")]
    assert [(piece.text, len(piece.logprobs)) for piece in pieces] == [
        ("a", 1),
        ("", 0),
        ("", 0),
        ("EN", 2),
    ]
    end = stream.end()
    assert (end.text, len(end.logprobs)) == ("E", 1)


def test_a_token_within_which_a_stop_string_begins_is_told_as_far_as_it_is_returned():
    ids = [LETTERS.token_to_id(word) for word in ("cc", "cab", "b")]
    text, entries = told(ids, LETTERS, stop=("ab",))
    assert text == "ccc"
    assert [(e.drawn.token, e.drawn.data) for e in entries] == [("cc", b"cc"), ("c", b"c")]


def test_a_token_that_ends_a_character_and_begins_a_stop_string_has_the_characters_end():
    tokenizer = Tokenizer.from_str(BYTE_LEVEL.to_str())
    first, *others = tokenizer.encode("€").tokens
    joined = "".join(others) + "EN"
    tokenizer.add_tokens([AddedToken(joined, normalized=False)])
    ids = [tokenizer.token_to_id(token) for token in (first, joined, "D")]
    text, entries = told(ids, tokenizer, stop=("END",))
    assert text == "€"
    assert [entry.drawn.data for entry in entries] == [b"\xe2", b"\x82\xac"]


def test_a_special_token_has_a_name_and_no_bytes():
    ids = [*byte_ids("one"), SPECIAL, *byte_ids(" two")]
    text, entries = told(ids)
    assert text == "one two"
    assert [(e.drawn.token, e.drawn.data) for e in entries if e.drawn.data is None] == [
        ("<|end|>", None)
    ]


def test_tokenizers_that_drop_the_first_space_drop_it_from_the_bytes_too():
    text, entries = told([1, 2, 3, 2], FALLBACK)
    assert text == "hello world! world"
    assert [e.drawn.data for e in entries] == [b"hello", b" world", b"!", b" world"]


def test_byte_tokens_of_the_sentencepiece_kind_are_bytes():
    ids = [FALLBACK.token_to_id(f"<0x{byte:02X}>") for byte in "é".encode()]
    text, entries = told([1, *ids], FALLBACK)
    assert text == "helloé"
    assert [e.drawn.data for e in entries] == [b"hello", b"\xc3", b"\xa9"]


def test_alternatives_are_told_with_their_bytes():
    stream = transcript()
    (letter,), half = byte_ids("a"), byte_ids("👩")[0]
    piece = stream.push(letter, Logprobs(-0.5, ((half, -0.25), (SPECIAL, -2.0))))
    (entry,) = piece.logprobs
    assert [(t.token, t.data, t.logprob) for t in entry.top] == [
        ("\ufffd", b"\xf0", -0.25),
        ("<|end|>", None, -2.0),
    ]


def test_without_log_probabilities_there_is_text_alone():
    piece = transcript().push(byte_ids("a")[0], None)
    assert (piece.text, piece.logprobs) == ("a", ())


def test_ids_beyond_the_tokenizer_add_nothing():
    vocabulary = Vocabulary(BYTE_LEVEL)
    assert (vocabulary.data(10**6), vocabulary.name(10**6)) == (b"", "")


def test_an_added_token_that_is_not_special_is_text():
    tokenizer = Tokenizer.from_str(BYTE_LEVEL.to_str())
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    token_id = tokenizer.token_to_id("<think>")
    assert told([token_id], tokenizer)[0] == "<think>"
    assert Vocabulary(tokenizer).data(token_id) == b"<think>"


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, FALLBACK, LETTERS])
def test_what_a_token_adds_is_what_the_tokenizer_decodes(tokenizer: Tokenizer):
    vocabulary = Vocabulary(tokenizer)
    for token_id in range(tokenizer.get_vocab_size()):
        decoded = tokenizer.decode([token_id])
        if "\ufffd" not in decoded:
            assert (vocabulary.first_data(token_id) or b"").decode() == decoded
