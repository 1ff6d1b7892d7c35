"""Reads adapter_config.json fail-closed: a field is honoured, harmless, or refused by name."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from loraplex.adapters import patterns, strict_json
from loraplex.adapters.combinations import impossible
from loraplex.adapters.config import MAX_RANK, AdapterConfig, Bias, TrainableTokens, is_all_linear
from loraplex.adapters.errors import Problem
from loraplex.adapters.pattern_process import Kind

MAX_CONFIG_BYTES = 1024 * 1024
MAX_RULES = 2048
"""Entries of rank_pattern and alpha_pattern together."""
MAX_REGEXES = 256
"""Of these, those that are more than a name; compiling them takes up to 40 µs a character."""
MAX_REGEX_CHARS = 8192
MAX_LAYERS_PATTERNS = 64
MAX_NAMES = 1024
"""Of one of the lists that are compared with every module's end."""
MAX_TOKENS = 65_536
"""Token ids of `trainable_token_indices`."""
MAX_INVOCATION_TOKENS = 64
"""A few words, which stand in each prompt that an adapter is tested with."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ParsedConfig:
    """A config and all reasons to refuse it; the config is meaningful only without problems."""

    config: AdapterConfig
    problems: tuple[Problem, ...]


# Field → why it has no effect at inference.
HARMLESS = MappingProxyType(
    {
        "auto_mapping": "names the class of a base model that is no causal model of transformers",
        "base_model_name_or_path": "informs: the base model is the operator's choice",
        "corda_config": "read only with init_lora_weights=corda, which is refused",
        "eva_config": "read only before training",
        "fan_in_fan_out": "how a weight lies in memory; matters when adapters are merged into it",
        "inference_mode": "freezes weights in training",
        "loftq_config": "read only with init_lora_weights=loftq, which is refused",
        "lora_dropout": "no effect outside of training",
        "lora_ga_config": "read only with init_lora_weights=lora_ga, which is refused",
        "megatron_core": "read only with megatron_config, which is refused",
        "peft_version": "informs",
        "qalora_group_size": "read only with use_qalora, which is refused",
        "revision": "informs, as base_model_name_or_path does",
        "runtime_config": "where PEFT itself computes",
    }
)

# Field → why it is refused unless null, false or empty.
REFUSED = MappingProxyType(
    {
        "arrow_config": "routing between adapters is not served",
        "kasa_config": "KaSA changes the base weights",
        "layer_replication": "replicated layers are another base model",
        "megatron_config": "Megatron layers are not served",
        "monteclora_config": "Monte Carlo LoRA is not served",
        "use_bdlora": "block-diagonal LoRA is not served",
        "use_qalora": "QALoRA is not served",
        "velora_config": "VeLoRA is not served",
    }
)

# Ways to start training that leave the base weights as they are. Others (pissa, olora, corda,
# loftq, lora_ga) change them, and the adapter fits only the changed base.
_INITS = frozenset({"gaussian", "eva", "orthogonal", "mica"})


def parse(data: bytes) -> ParsedConfig:
    """Read adapter_config.json; never raises for what the bytes say."""
    try:
        raw = msgspec.convert(strict_json.decode(data), dict[str, Any])
    except (ValueError, msgspec.ValidationError) as error:
        return ParsedConfig(AdapterConfig(), (Problem("adapter_config.json", "", str(error)),))
    return _Reader(raw).read()


@dataclass(slots=True)
class _Reader:
    """Takes field after field out of the raw config and notes every problem on the way."""

    raw: dict[str, Any]
    problems: list[Problem] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    """Patterns of rank_pattern and alpha_pattern."""

    def read(self) -> ParsedConfig:
        whole = dict(self.raw)
        self._check_kind()
        config = AdapterConfig(
            rank=self._take("r", int, 8, _check_rank),
            alpha=self._take("lora_alpha", float, 8.0, _check_alpha),
            use_rslora=self._take("use_rslora", bool, default=False),
            target_modules=self._modules("target_modules"),
            exclude_modules=self._modules("exclude_modules"),
            target_parameters=frozenset(self._names("target_parameters")),
            layers_to_transform=self._layers(),
            layers_pattern=self._layers_pattern(),
            rank_pattern=self._patterns("rank_pattern", int, _check_rank),
            alpha_pattern=self._patterns("alpha_pattern", float, _check_alpha),
            use_dora=self._take("use_dora", bool, default=False),
            lora_bias=self._take("lora_bias", bool, default=False),
            bias=self._take("bias", Bias, "none"),
            modules_to_save=self._names("modules_to_save"),
            trainable_tokens=self._trainable_tokens(),
            ensure_weight_tying=self._take("ensure_weight_tying", bool, default=False),
            invocation_tokens=self._invocation_tokens(),
            base_model=self._take("base_model_name_or_path", str | None, None),
        )
        self.problems += impossible(whole)
        self._refuse_the_rest()
        return ParsedConfig(config, tuple(self.problems))

    def _refuse(self, name: str, value: object, reason: str) -> None:
        self.problems.append(Problem(name, show(value), reason))

    def _take(
        self, name: str, kind: object, default: T, check: Callable[[T], str | None] | None = None
    ) -> T:
        """Remove a field and return it converted, or the default after noting the problem."""
        if name not in self.raw:
            return default
        raw = self.raw.pop(name)
        try:
            value: T = msgspec.convert(raw, kind, strict=True)
        except msgspec.ValidationError as error:
            self._refuse(name, raw, f"cannot be read: {error}")
            return default
        reason = check(value) if check else None
        if reason:
            self._refuse(name, raw, reason)
            return default
        return value

    def _check_kind(self) -> None:
        peft_type = self.raw.pop("peft_type", None)
        if peft_type != "LORA":
            self._refuse("peft_type", peft_type, "only LORA is served")
        task_type = self.raw.pop("task_type", None)
        if task_type not in (None, "CAUSAL_LM"):  # a value that is no text may not be hashable
            self._refuse("task_type", task_type, "only CAUSAL_LM is served")
        init = self.raw.pop("init_lora_weights", True)
        if not (init is None or isinstance(init, bool) or _is_init(init)):
            self._refuse(
                "init_lora_weights",
                init,
                "alters the base weights, or is unknown; convert the adapter to plain LoRA when "
                "saving (path_initial_model_for_weight_conversion)",
            )

    def _modules(self, name: str) -> frozenset[str] | str:
        names: list[str] | str | None = self._take(name, list[str] | str | None, None)
        if not isinstance(names, str):
            return frozenset(names or ())
        reason = None if is_all_linear(names) else patterns.refusal(names)
        if reason:
            self._refuse(name, names, reason)
        return names

    def _names(self, name: str) -> tuple[str, ...]:
        """A list of plain names: PEFT runs some of them as regular expressions."""
        return tuple(self._take(name, list[str] | None, None, _check_names) or ())

    def _layers(self) -> frozenset[int] | None:
        layers: list[int] | int | None
        layers = self._take("layers_to_transform", list[int] | int | None, None)
        if isinstance(layers, int):
            return frozenset({layers})
        return frozenset(layers) if layers else None

    def _layers_pattern(self) -> tuple[str, ...]:
        found: list[str] | str | None
        found = self._take("layers_pattern", list[str] | str | None, None)
        names: tuple[str, ...] = (found,) if isinstance(found, str) else tuple(found or ())
        if len(names) > MAX_LAYERS_PATTERNS:
            self._refuse("layers_pattern", found, f"holds more than {MAX_LAYERS_PATTERNS} patterns")
            return ()
        for name in names:
            reason = patterns.refusal(name, Kind.LAYERS)
            if reason:
                self._refuse("layers_pattern", name, reason)
        return names

    def _patterns(
        self, name: str, kind: type[T], check: Callable[[T], str | None]
    ) -> tuple[tuple[str, T], ...]:
        raw: dict[str, object] | None = self._take(name, dict[str, object] | None, None)
        try:
            found = {
                pattern: msgspec.convert(value, kind) for pattern, value in (raw or {}).items()
            }
        except msgspec.ValidationError as error:
            self._refuse(name, raw, f"cannot be read: {error}")
            return ()
        self.rules += found
        reason = _check_number(self.rules)
        if reason:
            self._refuse(name, raw, reason)
            return ()
        for pattern, value in found.items():
            reason = patterns.refusal(pattern, Kind.SUFFIX) or check(value)
            if reason:
                self._refuse(name, {pattern: value}, reason)
        return tuple(found.items())

    def _invocation_tokens(self) -> tuple[int, ...]:
        found: list[int] | None
        found = self._take("alora_invocation_tokens", list[int] | None, None, _check_invocation)
        return tuple(found or ())

    def _trainable_tokens(self) -> tuple[TrainableTokens, ...]:
        kind = list[int] | dict[str, list[int]] | None
        found: list[int] | dict[str, list[int]] | None
        found = self._take("trainable_token_indices", kind, None, _check_token_rows)
        if isinstance(found, dict):
            return tuple(TrainableTokens(name, tuple(ids)) for name, ids in found.items())
        return (TrainableTokens(None, tuple(found)),) if found else ()

    def _refuse_the_rest(self) -> None:
        for name, value in self.raw.items():
            if name in HARMLESS or value is None or value is False or value in ([], {}):
                continue
            reason = REFUSED.get(name, "this field is unknown, so its effect cannot be honoured")
            self._refuse(name if name.isidentifier() else show(name), value, reason)


def _is_init(value: object) -> bool:
    return isinstance(value, str) and value in _INITS


def _check_rank(rank: int) -> str | None:
    return None if 1 <= rank <= MAX_RANK else f"ranks are 1 to {MAX_RANK}"


def _check_alpha(alpha: float) -> str | None:
    return None if math.isfinite(alpha) and abs(alpha) <= 1e6 else "out of range"


def _check_names(names: list[str] | None) -> str | None:
    found = names or ()
    if len(found) > MAX_NAMES:
        return f"holds {len(found)} names; at most {MAX_NAMES} are possible"
    odd = [name for name in found if not name or not patterns.is_plain(name)]
    return f"{show(odd[0])} is not a plain name" if odd else None


def _check_invocation(indices: list[int] | None) -> str | None:
    return _check_tokens(indices or [], MAX_INVOCATION_TOKENS)


def _check_tokens(found: list[int], at_most: int = MAX_TOKENS) -> str | None:
    if len(found) > at_most:
        return f"holds {len(found)} tokens; at most {at_most} are possible"
    return "holds a negative token id" if any(index < 0 for index in found) else None


def _check_token_rows(found: list[int] | dict[str, list[int]] | None) -> str | None:
    lists = list(found.values()) if isinstance(found, dict) else [found or []]
    if isinstance(found, dict) and _check_names(list(found)):
        return _check_names(list(found))
    if isinstance(found, dict) and not all(lists):
        return "a module has no tokens"
    if any(len(set(indices)) < len(indices) for indices in lists):
        return "a token is there twice"
    return next(filter(None, map(_check_tokens, lists)), None)


def _check_number(rules: list[str]) -> str | None:
    regexes = [rule for rule in rules if not patterns.is_plain(rule)]
    if len(rules) > MAX_RULES:
        return f"makes {len(rules)} patterns in all; at most {MAX_RULES} are possible"
    if len(regexes) > MAX_REGEXES or sum(map(len, regexes)) > MAX_REGEX_CHARS:
        return (
            f"makes {len(regexes)} regular expressions of {sum(map(len, regexes))} characters in "
            f"all; at most {MAX_REGEXES} of {MAX_REGEX_CHARS} are possible, and any of plain names"
        )
    return None


def show(value: object) -> str:
    """A value for people, cut short."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
