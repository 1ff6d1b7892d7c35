"""What adapters bring beside their weights: kept where it differs from the base's, or refused."""

import json
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.platform.tiny_model import CHAT_TEMPLATE, model_info
from tokenizers import AddedToken, Tokenizer

from loraplex.adapters.errors import Problem
from loraplex.adapters.profile import Profile, decode
from loraplex.adapters.profile_files import BaseWays, ReadProfile, read_profile_files

MODEL = model_info(vocab_size=330)
BASE = BaseWays(MODEL.tokenizer_json, CHAT_TEMPLATE, MODEL.special_tokens, MODEL.vocab_size)


def read(folder: Path, **files: object) -> ReadProfile:
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_bytes(data)
    return read_profile_files(folder, BASE)


def problem(folder: Path, **files: object) -> str:
    found = read(folder, **files)
    assert found.problems
    return str(found.problems[0])


def tokenizer(**changes: object) -> bytes:
    layout = json.loads(MODEL.tokenizer_json)
    return json.dumps({**layout, **changes}).encode()


def with_tokens(*tokens: AddedToken) -> bytes:
    extended = Tokenizer.from_str(MODEL.tokenizer_json.decode())
    extended.add_special_tokens([t for t in tokens if t.special])
    extended.add_tokens([t for t in tokens if not t.special])
    return extended.to_str().encode()


def test_a_folder_without_such_files_has_the_bases_ways(tmp_path: Path) -> None:
    assert read(tmp_path, README_md=b"# x") == ReadProfile(Profile(), ())
    assert Profile().kept() is None


def test_what_equals_the_bases_is_left_out(tmp_path: Path) -> None:
    config = {"chat_template": CHAT_TEMPLATE, "eos_token": "<|im_end|>", "pad_token": "<|bos|>"}
    found = read(tmp_path, tokenizer_config_json=config, tokenizer_json=MODEL.tokenizer_json)
    assert found == ReadProfile(Profile(), ())


def test_merges_that_are_written_in_another_form_are_the_same(tmp_path: Path) -> None:
    layout = json.loads(MODEL.tokenizer_json)
    layout["model"]["merges"] = [" ".join(m) for m in layout["model"]["merges"]]
    layout["model"].pop("ignore_merges", None)
    assert read(tmp_path, tokenizer_json=layout) == ReadProfile(Profile(), ())


def test_a_template_of_its_own_comes_with_the_special_tokens_it_names(tmp_path: Path) -> None:
    config = {
        "chat_template": [
            {"name": "default", "template": "yes"},
        ],
        "eos_token": {"content": "</s>", "special": True},
    }
    profile = read(tmp_path, tokenizer_config_json=config).profile
    assert profile.chat_template == "yes"
    assert profile.special_tokens == {"bos_token": "<|bos|>", "eos_token": "</s>"}
    profile = read(tmp_path, chat_template_jinja=b"the file wins").profile
    assert profile.chat_template == "the file wins"


def test_tokens_that_end_and_sampling_come_from_the_generation_config(tmp_path: Path) -> None:
    config = {
        "eos_token_id": [2, 1, 2],
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.1,
        "max_new_tokens": 100,
        "transformers_version": "5.0.0",
        "num_beams": 1,
    }
    found = read(tmp_path, generation_config_json=config)
    assert found == ReadProfile(
        Profile(
            stop_token_ids=(2, 1), temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.1
        ),
        (),
    )


def test_a_config_that_does_not_sample_takes_the_likeliest_token(tmp_path: Path) -> None:
    config = {"do_sample": False, "temperature": 0.6, "top_k": 5, "repetition_penalty": 1.5}
    found = read(tmp_path, generation_config_json=config)
    assert found == ReadProfile(Profile(temperature=0.0, repetition_penalty=1.5), ())


def test_a_config_that_says_nothing_of_sampling_leaves_it_to_requests(tmp_path: Path) -> None:
    config = {"eos_token_id": 2, "repetition_penalty": 1.5}
    found = read(tmp_path, generation_config_json=config)
    assert found == ReadProfile(Profile(stop_token_ids=(2,), repetition_penalty=1.5), ())


def test_special_tokens_that_the_bases_template_names_make_another_text_of_it(
    tmp_path: Path,
) -> None:
    template = "{{ bos_token }}{{ messages[0].content }}"
    base = BaseWays(MODEL.tokenizer_json, template, MODEL.special_tokens, MODEL.vocab_size)
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "x", "eos_token": "y"}')
    assert read_profile_files(tmp_path, base).profile == Profile()
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<s>"}')
    profile = read_profile_files(tmp_path, base).profile
    assert (profile.chat_template, profile.special_tokens["bos_token"]) == (template, "<s>")


def test_templates_that_no_request_could_use_are_refused_by_name(tmp_path: Path) -> None:
    templates = [{"name": n, "template": "x"} for n in ("default", "rag", "tool_use")]
    found = read(tmp_path, tokenizer_config_json={"chat_template": templates})
    assert [p.reason.split("'")[1] for p in found.problems] == ["rag", "tool_use"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"num_beams": 4}, "num_beams"),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size"),
        ({"forced_eos_token_id": 2}, "forced_eos_token_id"),
        ({"eos_token_id": 400}, "eos_token_id"),
        ({"eos_token_id": "x"}, "eos_token_id"),
        ({"eos_token_id": [True]}, "eos_token_id"),
        ({"eos_token_id": list(range(17))}, "eos_token_id"),
        ({"do_sample": True, "temperature": -1}, "temperature"),
        ({"do_sample": True, "top_p": 0}, "top_p"),
        ({"do_sample": True, "top_k": 2.5}, "top_k"),
        ({"do_sample": True, "temperature": True}, "temperature"),
        ({"do_sample": "yes"}, "do_sample"),
        ({"do_sample": 1}, "do_sample"),
        ({"temperature": 0.6}, "temperature"),
        ([], "generation_config.json"),
    ],
)
def test_a_generation_config_that_is_not_served_is_refused_by_field(
    tmp_path: Path, config: object, words: str
) -> None:
    assert words in problem(tmp_path, generation_config_json=config)


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config_json": b'{"chat_template": "a", "chat_template": "b"}'},
        {"tokenizer_config_json": b"{"},
        {"tokenizer_config_json": b"[" * 100_000},
        {"tokenizer_config_json": {"chat_template": 5}},
        {"tokenizer_config_json": {"chat_template": ["x"]}},
        {"chat_template_jinja": b"caf\xe9"},
        {"chat_template_jinja": b"x" * 70_000},
        {"chat_template_jinja": b"x" * 5_000_000},
        {"tokenizer_config_json": {f"t{i}_token": "x" for i in range(40)}},
        {"special_tokens_map_json": {"eos_token": "x" * 300}},
        {"added_tokens_json": {"<new>": 320}},
        {"tokenizer_json": b"no"},
        {"tokenizer_json": {}},
        {"tokenizer_json": {"added_tokens": [5]}},
    ],
)
def test_files_that_cannot_be_taken_are_refused_by_name(
    tmp_path: Path, files: dict[str, object]
) -> None:
    (name,) = files
    assert name.rpartition("_")[0] in problem(tmp_path, **files)


def test_a_tokenizer_that_adds_tokens_is_kept_by_its_digest(tmp_path: Path) -> None:
    found = read(tmp_path, tokenizer_json=with_tokens(AddedToken("<tool>", special=True)))
    assert found.problems == ()
    assert found.profile.tokenizer_sha256 is not None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}}), "pre_tok"),
        (tokenizer(normalizer={"type": "NFC"}), "normalizer"),
        (tokenizer(decoder=None), "decoder"),
        (tokenizer(model={"type": "BPE", "vocab": {}, "merges": []}), "model"),
        (tokenizer(added_tokens=[]), "token 0"),
        (tokenizer(more=1), "more"),
        (with_tokens(*(AddedToken(f"<t{i}>") for i in range(20))), "below 330"),
        (with_tokens(AddedToken("x" * 300)), "characters"),
    ],
)
def test_a_tokenizer_that_does_not_extend_the_bases_is_refused(
    tmp_path: Path, data: bytes, words: str
) -> None:
    assert words in problem(tmp_path, tokenizer_json=data)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        generation_config_json={"num_beams": 4, "top_k": -1},
        tokenizer_json=tokenizer(decoder=None),
        tokenizer_config_json=b"{",
    )
    assert len(found.problems) == 4


def test_a_profile_is_written_alike_and_read_back(tmp_path: Path) -> None:
    profile = Profile(chat_template="x", special_tokens={"b": "2", "a": "1"}, temperature=0.5)
    other = Profile(temperature=0.5, special_tokens={"a": "1", "b": "2"}, chat_template="x")
    assert profile.kept() == other.kept()
    assert decode(profile.encoded()) == profile
    activated = msgspec.structs.replace(profile, invocation_tokens=(1, 2))
    assert activated.kept() == profile.kept()
    assert Profile(invocation_tokens=(1,)).kept() is None


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("generation_config.json", b'{"\\ud800": 1}', "surrogate"),
        ("tokenizer.json", tokenizer(**{"\ud800": 1}), "surrogate"),
        (
            "tokenizer_config.json",
            b'{"\\ud800_token": "x", "chat_template": "{{messages}}"}',
            "surrogate",
        ),
        ("generation_config.json", b'{"do_sample": true, "top_k": 1e400}', "too large"),
        ("generation_config.json", b'{"temperature": 1%s}' % (b"0" * 400), "must be 0 to 2"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": [], "template": {}}]}', "no list"),
        ("tokenizer.json", tokenizer(model={"merges": [1]}), "its model is not"),
    ],
)
def test_what_no_text_or_number_can_be_is_refused(
    tmp_path: Path, file: str, content: bytes, words: str
) -> None:
    (tmp_path / file).write_bytes(content)
    assert words in str(read_profile_files(tmp_path, BASE).problems[0])


def test_a_problem_can_be_sent_whatever_it_names() -> None:
    assert str(Problem("a\ud800", "\udfff", "é")) == "a\\ud800 is \\udfff: é"


WORDS = st.text(st.characters(exclude_categories=()), max_size=5)
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(10**400), 1, 0, 329, 330])
SCALARS = st.none() | st.booleans() | NUMBERS | WORDS
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)


def objects(fields: str, **special: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Objects with any values in the fields, and with any others."""
    known = {name: special.get(name, JSON) for name in fields.split()}
    others = st.dictionaries(WORDS, JSON, max_size=1)
    return st.builds(dict.__or__, others, st.fixed_dictionaries({}, optional=known))


TOKEN = objects("id content special single_word")
TEMPLATES = JSON | st.lists(objects("name template"), max_size=2)
CONTENTS = {
    "generation_config.json": objects(
        "temperature top_p top_k min_p repetition_penalty do_sample eos_token_id num_beams"
    ),
    "tokenizer_config.json": objects("chat_template eos_token", chat_template=TEMPLATES),
    "special_tokens_map.json": objects("eos_token", eos_token=TOKEN),
    "added_tokens.json": objects("x"),
    "tokenizer.json": objects(
        "model decoder added_tokens post_processor",
        model=objects("type vocab merges"),
        added_tokens=JSON | st.lists(TOKEN, max_size=2),
    ),
}


@settings(max_examples=200)
@given(
    st.fixed_dictionaries({}, optional={name: each | JSON for name, each in CONTENTS.items()}),
    st.booleans(),
)
def test_no_file_makes_reading_fail(files: dict[str, object], extends: bool) -> None:
    if extends and isinstance(changes := files.get("tokenizer.json"), dict):
        files["tokenizer.json"] = json.loads(MODEL.tokenizer_json) | changes
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_text(json.dumps(content))
        found = read_profile_files(Path(folder), BASE)
    assert decode(found.profile.encoded()) == found.profile
    assert all(str(problem).encode() for problem in found.problems)
