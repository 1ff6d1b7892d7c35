"""Reads an adapter's profile from the files that people's folders hold beside the weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from loraplex.adapters import strict_json, tokenizer_check
from loraplex.adapters.errors import Problem
from loraplex.adapters.profile import TOKENIZER_FILE, Profile
from loraplex.adapters.tokenizer_check import CheckedTokenizer

TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"
GENERATION_FILE = "generation_config.json"
PROFILE_FILES = (
    TOKENIZER_FILE,
    TOKENIZER_CONFIG_FILE,
    TEMPLATE_FILE,
    GENERATION_FILE,
    SPECIAL_TOKENS_FILE,
    ADDED_TOKENS_FILE,
)
"""All that is read; other files of a folder say nothing about how requests are made."""
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_TOKENIZER_BYTES = 64 * 1024 * 1024
MAX_TEMPLATE_CHARS = 65_536
MAX_SPECIAL_TOKENS = 32
MAX_TOKEN_CHARS = 256
MAX_STOP_TOKEN_IDS = 16

# Field → the values that change nothing here; None is one for all.
_NO_EFFECT = frozenset(
    {"_from_model_config", "bos_token_id", "pad_token_id", "transformers_version", "use_cache"}
    | {"max_length", "max_new_tokens", "cache_implementation", "return_dict_in_generate"}
    | {"decoder_start_token_id", "output_attentions", "output_hidden_states", "output_scores"}
)
_NEUTRAL: Mapping[str, object] = MappingProxyType(
    {
        "num_beams": 1,
        "num_return_sequences": 1,
        "typical_p": 1.0,
        "diversity_penalty": 0.0,
        "length_penalty": 1.0,
        "encoder_repetition_penalty": 1.0,
        "epsilon_cutoff": 0.0,
        "eta_cutoff": 0.0,
        "num_beam_groups": 1,
    }
)
# Field → lowest, highest; whether the lowest itself is possible.
_RANGES: Mapping[str, tuple[type, float, float, bool]] = MappingProxyType(
    {
        "temperature": (float, 0, 2, True),
        "top_p": (float, 0, 1, False),
        "top_k": (int, 0, (1 << 31) - 1, True),
        "min_p": (float, 0, 1, True),
        "repetition_penalty": (float, 0.01, 10, True),
    }
)
_ALWAYS = frozenset({"repetition_penalty"})
"""In force whether tokens are sampled or not."""


@dataclass(frozen=True, slots=True)
class BaseWays:
    """How requests on the base model are made."""

    tokenizer_json: bytes
    chat_template: str | None
    special_tokens: Mapping[str, str]
    vocab_size: int
    """Of the adapter, if it has more tokens."""


@dataclass(frozen=True, slots=True)
class ReadProfile:
    """What a folder says, and all reasons to refuse it."""

    profile: Profile
    problems: tuple[Problem, ...]


def read_profile_files(folder: Path, base: BaseWays) -> ReadProfile:
    """Read whichever of PROFILE_FILES a folder has; what equals the base's ways is left out.

    Never raises for what the files say. A template is read, not tried: that is done elsewhere.
    """
    return _Reader(folder, base).read()


@dataclass(slots=True)
class _Reader:
    folder: Path
    base: BaseWays
    problems: list[Problem] = field(default_factory=list)

    def read(self) -> ReadProfile:
        config = self._object(TOKENIZER_CONFIG_FILE)
        specials = self._special_tokens(self._object(SPECIAL_TOKENS_FILE) | config)
        template = self._template(config)
        if template in (None, self.base.chat_template):
            # Other special tokens make another text of the same template.
            template = self.base.chat_template if self._changes_the_bases(specials) else None
        tokenizer = self._tokenizer()
        profile = Profile(
            chat_template=template,
            special_tokens={} if template is None else {**self.base.special_tokens, **specials},
            tokenizer_sha256=tokenizer.sha256,
            added_tokens=tokenizer.added,
            **self._generation(self._object(GENERATION_FILE)),
        )
        return ReadProfile(profile, tuple(self.problems))

    def _refuse(self, name: str, reason: str) -> None:
        self.problems.append(Problem(name, "", reason))

    def _refuse_setting(self, name: str, value: object, reason: str) -> None:
        where = f"{GENERATION_FILE}: {name[:80]}"
        self.problems.append(Problem(where, repr(value)[:80], reason))

    def _changes_the_bases(self, specials: Mapping[str, str]) -> bool:
        template, base = self.base.chat_template or "", self.base.special_tokens
        return any(name in template and base.get(name) != text for name, text in specials.items())

    def _bytes(self, name: str, limit: int = MAX_FILE_BYTES) -> bytes | None:
        """A file's content; None where there is none, or none that can be taken."""
        file = self.folder / name
        if not file.is_file():
            return None
        with file.open("rb") as opened:
            data = opened.read(limit + 1)
        if len(data) > limit:
            self._refuse(name, f"is larger than {limit} bytes")
            return None
        return data

    def _object(self, name: str) -> dict[str, Any]:
        data = self._bytes(name)
        if data is None:
            return {}
        try:
            return msgspec.convert(strict_json.decode(data), dict[str, Any])
        except (ValueError, msgspec.ValidationError) as error:
            self._refuse(name, str(error))
            return {}

    def _template(self, config: dict[str, Any]) -> str | None:
        data, name = self._bytes(TEMPLATE_FILE), TEMPLATE_FILE
        found: object = config.get("chat_template")
        if data is not None:
            try:
                found = data.decode()
            except UnicodeDecodeError as error:
                self._refuse(name, f"is not UTF-8 at byte {error.start}")
                return None
        else:
            name = TOKENIZER_CONFIG_FILE
            found = self._named_default(found) if isinstance(found, list) else found
        if found is not None and not isinstance(found, str):
            self._refuse(name, "chat_template is no text")
            return None
        if found is not None and len(found) > MAX_TEMPLATE_CHARS:
            self._refuse(name, f"the template is longer than {MAX_TEMPLATE_CHARS} characters")
            return None
        return found

    def _named_default(self, templates: list[object]) -> object:
        """Of several templates by name the one that is served."""
        named = {
            t["name"]: t.get("template")
            for t in templates
            if isinstance(t, dict) and isinstance(t.get("name"), str)
        }
        if len(named) != len(templates):
            self._refuse(TOKENIZER_CONFIG_FILE, "chat_template is no list of names and templates")
        for name in sorted(named.keys() - {"default"}):
            reason = f"chat_template {name[:60]!r} is never used; remove all but 'default'"
            self._refuse(TOKENIZER_CONFIG_FILE, reason)
        return named.get("default")

    def _special_tokens(self, config: dict[str, Any]) -> dict[str, str]:
        specials: dict[str, str] = {}
        for name, token in config.items():
            text = token.get("content") if isinstance(token, dict) else token
            if name.endswith("_token") and isinstance(text, str):
                specials[name] = text
        if len(specials) > MAX_SPECIAL_TOKENS or any(
            len(text) > MAX_TOKEN_CHARS for text in (*specials, *specials.values())
        ):
            self._refuse(
                f"{TOKENIZER_CONFIG_FILE}, {SPECIAL_TOKENS_FILE}",
                f"at most {MAX_SPECIAL_TOKENS} special tokens of {MAX_TOKEN_CHARS} characters are "
                "possible",
            )
        return specials

    def _tokenizer(self) -> CheckedTokenizer:
        data = self._bytes(TOKENIZER_FILE, MAX_TOKENIZER_BYTES)
        added = self._object(ADDED_TOKENS_FILE)
        if data is None:
            ids = tokenizer_check.added_ids(self.base.tokenizer_json)
            if any(ids.get(text) != token_id for text, token_id in added.items()):
                self._refuse(ADDED_TOKENS_FILE, f"adds tokens that no {TOKENIZER_FILE} has")
            return CheckedTokenizer(None)
        checked = tokenizer_check.check(data, self.base.tokenizer_json, self.base.vocab_size)
        for reason in checked.problems:
            self._refuse(TOKENIZER_FILE, reason)
        return checked

    def _generation(self, config: dict[str, Any]) -> dict[str, Any]:
        """Fields of the profile that generation_config.json sets."""
        found: dict[str, Any] = {"stop_token_ids": self._stops(config.pop("eos_token_id", None))}
        found |= self._sampling(config)
        for name, value in config.items():
            if value in (None, False, [], {}) or name in _NO_EFFECT:
                continue
            if name not in _NEUTRAL or value != _NEUTRAL[name]:
                self._refuse_setting(name, value, "is not served; remove it")
        return found

    def _sampling(self, config: dict[str, Any]) -> dict[str, float]:
        """Fields of the profile that say how tokens are drawn, taken out of the config. As in
        transformers, one that does not sample takes the likeliest token, penalties included."""
        does_sample = config.pop("do_sample", None)
        if does_sample is not None and not isinstance(does_sample, bool):
            self._refuse_setting("do_sample", does_sample, "must be true or false")
        values = {name: self._number(name, config.pop(name, None)) for name in _RANGES}
        found = {name: value for name, value in values.items() if value is not None}
        if does_sample is True:
            return found
        penalty = {name: value for name, value in found.items() if name in _ALWAYS}
        if does_sample is False:
            return {"temperature": 0.0, **penalty}
        for name in found.keys() - _ALWAYS:
            reason = "says how to sample, but not do_sample whether to: set it to true or false"
            self._refuse_setting(name, found[name], reason)
        return penalty

    def _stops(self, value: object) -> tuple[int, ...]:
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(i) is int and 0 <= i < self.base.vocab_size for i in ids):
            reason = f"must be ids below {self.base.vocab_size}"
            self._refuse_setting("eos_token_id", value, reason)
            return ()
        if len(ids) > MAX_STOP_TOKEN_IDS:
            reason = f"at most {MAX_STOP_TOKEN_IDS} ids are possible"
            self._refuse_setting("eos_token_id", value, reason)
            return ()
        return tuple(dict.fromkeys(ids))

    def _number(self, name: str, value: object) -> float | None:
        kind, low, high, is_closed = _RANGES[name]
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse_setting(name, value, "must be a number")
            return None
        if kind is int and value != int(value):
            self._refuse_setting(name, value, "must be a whole number")
            return None
        # Before the conversion, which overflows for some whole numbers.
        if not low <= value <= high or (value == low and not is_closed):
            bound = "" if is_closed else "above "
            self._refuse_setting(name, value, f"must be {bound}{low} to {high}")
            return None
        number: float = kind(value)
        return number
