"""Tokens of an adapter that brings its own tokenizer, as text."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from tests import tiny_models
from tests.adapters import build as adapters
from tests.engine import build
from tokenizers import AddedToken, Tokenizer

from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.digest import with_profile
from loraplex.adapters.profile import Profile
from loraplex.adapters.storage import AdapterStore
from loraplex.engine import own_tokenizers
from loraplex.engine.own_tokenizers import Decoding, OwnTokenizers
from loraplex.engine.protocol import Sampling

OWN_ID = 320


def base_json() -> bytes:
    return tiny_models.make_tokenizer().backend_tokenizer.to_str().encode()


def own_json(text: str) -> bytes:
    tokenizer = Tokenizer.from_buffer(base_json())
    tokenizer.add_tokens([AddedToken(text, special=False)])
    return tokenizer.to_str().encode()


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "store")


def put(store: AdapterStore, folder: Path, tokenizer_json: bytes | None) -> str:
    """Store an adapter that brings this tokenizer; return its digest."""
    checkpoint = inspect(adapters.save(folder), adapters.base())
    if tokenizer_json is None:
        store.put(checkpoint)
        return checkpoint.digest
    (folder / "tokenizer.json").write_bytes(tokenizer_json)
    profile = Profile(tokenizer_sha256=hashlib.sha256(tokenizer_json).hexdigest()).kept()
    checkpoint = replace(checkpoint, digest=with_profile(checkpoint.digest, profile))
    store.put(checkpoint, profile)
    return checkpoint.digest


def text_of(tokenizers: OwnTokenizers, adapter: str | None, *ids: int) -> str:
    text = tokenizers.new_text(build.submit("a", adapter=adapter))
    return "".join(text.push(token_id, None).text for token_id in ids) + text.end().text


def test_it_is_read_by_the_tokenizer_of_its_adapter(store: AdapterStore, tmp_path: Path) -> None:
    own = put(store, tmp_path / "own", own_json("<mark>"))
    plain = put(store, tmp_path / "plain", None)
    tokenizers = OwnTokenizers(Decoding.of(base_json()), store)
    tokenizers.learn(own)
    tokenizers.learn(plain)
    assert text_of(tokenizers, own, OWN_ID) == "<mark>"
    assert text_of(tokenizers, plain, OWN_ID) == text_of(tokenizers, None, OWN_ID) == ""


def test_tokenizers_used_long_ago_are_forgotten_and_read_again(
    store: AdapterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_tokenizers, "MAX_OWN", 2)
    digests = [put(store, tmp_path / f"{i}", own_json(f"<{i}>")) for i in range(4)]
    tokenizers = OwnTokenizers(Decoding.of(base_json()), store)
    for digest in digests:
        tokenizers.learn(digest)
    assert len(tokenizers._known) == 2
    assert [text_of(tokenizers, digest, OWN_ID) for digest in digests] == [
        "<0>",
        "<1>",
        "<2>",
        "<3>",
    ]


def test_one_that_cannot_be_read_again_leaves_its_text_to_the_base_models(
    store: AdapterStore, tmp_path: Path
) -> None:
    tokenizers = OwnTokenizers(Decoding.of(base_json()), store)
    assert text_of(tokenizers, "0" * 64, 40, OWN_ID) == text_of(tokenizers, None, 40)


def test_a_stop_string_that_is_empty_is_refused_before_anything_is_computed(
    store: AdapterStore,
) -> None:
    tokenizers = OwnTokenizers(Decoding.of(base_json()), store)
    sampling = Sampling(max_tokens=1, temperature=0.0, seed=0, stop=("",))
    empty = build.submit("a", adapter="x", sampling=sampling)
    with pytest.raises(ValueError, match="empty"):
        tokenizers.new_text(empty)
