"""PEFT's adapter_config.json, read fail-closed: a field is honoured, harmless, or refused by name.

Fields and defaults: `peft.LoraConfig` (https://github.com/huggingface/peft), up to 0.21.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from loraplex.adapters import patterns, strict_json

MAX_RANK = 256
MAX_CONFIG_BYTES = 1024 * 1024
MAX_RULES = 2048
"""Entries of rank_pattern and alpha_pattern together."""
MAX_REGEXES = 256
"""Of these, those that are more than a name; compiling them takes up to 40 µs a character."""
MAX_REGEX_CHARS = 8192

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What an adapter's config says, as far as it changes what is computed or must be present."""

    rank: int = 8
    alpha: float = 8.0
    use_rslora: bool = False
    """Scale by alpha/√rank instead of alpha/rank."""
    target_modules: frozenset[str] | str = frozenset()
    """Names or name suffixes; or one regular expression; or `all-linear`."""
    exclude_modules: frozenset[str] | str = frozenset()
    layers_to_transform: frozenset[int] | None = None
    layers_pattern: tuple[str, ...] = ()
    rank_pattern: tuple[tuple[str, int], ...] = ()
    """Pattern to rank; the first that matches a module wins, so order matters."""
    alpha_pattern: tuple[tuple[str, float], ...] = ()
    base_model: str | None = None
    """What the trainer called the base model; informs, decides nothing."""


@dataclass(frozen=True, slots=True)
class ParsedConfig:
    """A config and all reasons to refuse it; the config is meaningful only without problems."""

    config: AdapterConfig
    problems: tuple[str, ...]


# Read by nothing at inference, or only together with another field that is refused.
# `fan_in_fan_out` is how a weight lies in memory, which matters when adapters are merged into it.
_HARMLESS = frozenset(
    {"auto_mapping", "fan_in_fan_out", "inference_mode", "lora_dropout", "peft_version", "revision"}
    | {"runtime_config", "megatron_core", "qalora_group_size"}
    | {"corda_config", "eva_config", "loftq_config", "lora_ga_config"}
)

# Field → why it is refused unless null, false or empty.
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "alora_invocation_tokens": "activated LoRA is not served",
        "arrow_config": "routing between adapters is not served",
        "ensure_weight_tying": "adapters on tied embeddings are not served",
        "kasa_config": "KaSA changes the base weights",
        "layer_replication": "replicated layers are another base model",
        "lora_bias": "bias terms in LoRA layers are not served",
        "megatron_config": "Megatron layers are not served",
        "modules_to_save": "full copies of base modules are not served",
        "monteclora_config": "Monte Carlo LoRA is not served",
        "target_parameters": "LoRA on bare parameters (experts) is not served",
        "trainable_token_indices": "retrained token embeddings are not served",
        "use_bdlora": "block-diagonal LoRA is not served",
        "use_dora": "DoRA is not served",
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
        return ParsedConfig(AdapterConfig(), (f"adapter_config.json: {error}",))
    return _Reader(raw).read()


@dataclass(slots=True)
class _Reader:
    """Takes field after field out of the raw config and notes every problem on the way."""

    raw: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    """Patterns of rank_pattern and alpha_pattern."""

    def read(self) -> ParsedConfig:
        self._check_kind()
        config = AdapterConfig(
            rank=self._take("r", int, 8, _check_rank),
            alpha=self._take("lora_alpha", float, 8.0, _check_alpha),
            use_rslora=self._take("use_rslora", bool, default=False),
            target_modules=self._modules("target_modules"),
            exclude_modules=self._modules("exclude_modules"),
            layers_to_transform=self._layers(),
            layers_pattern=self._layers_pattern(),
            rank_pattern=self._patterns("rank_pattern", int, _check_rank),
            alpha_pattern=self._patterns("alpha_pattern", float, _check_alpha),
            base_model=self._take("base_model_name_or_path", str | None, None),
        )
        self._check_targets(config)
        self._refuse_the_rest()
        return ParsedConfig(config, tuple(self.problems))

    def _refuse(self, name: str, reason: str) -> None:
        self.problems.append(f"adapter_config.json: {name} {reason}")

    def _take(
        self, name: str, kind: object, default: T, check: Callable[[T], str | None] | None = None
    ) -> T:
        """Remove a field and return it converted, or the default after noting the problem."""
        if name not in self.raw:
            return default
        try:
            value: T = msgspec.convert(self.raw.pop(name), kind, strict=True)
        except msgspec.ValidationError as error:
            self._refuse(name, f"cannot be read: {error}")
            return default
        reason = check(value) if check else None
        if reason:
            self._refuse(name, reason)
            return default
        return value

    def _check_kind(self) -> None:
        peft_type = self.raw.pop("peft_type", None)
        if peft_type != "LORA":
            self._refuse("peft_type", f"is {_show(peft_type)}; only LORA is served")
        task_type = self.raw.pop("task_type", None)
        if task_type not in (None, "CAUSAL_LM"):  # a value that is no text may not be hashable
            self._refuse("task_type", f"is {_show(task_type)}; only CAUSAL_LM is served")
        bias = self.raw.pop("bias", "none")
        if bias != "none":
            self._refuse("bias", f"is {_show(bias)}; trained base biases are not served")
        init = self.raw.pop("init_lora_weights", True)
        if not (init is None or isinstance(init, bool) or _is_init(init)):
            self._refuse(
                "init_lora_weights",
                f"is {_show(init)}, which alters the base weights; convert the adapter to plain "
                "LoRA when saving (path_initial_model_for_weight_conversion)",
            )

    def _modules(self, name: str) -> frozenset[str] | str:
        names: list[str] | str | None = self._take(name, list[str] | str | None, None)
        if not isinstance(names, str):
            return frozenset(names or ())
        reason = None if is_all_linear(names) else patterns.refusal(names)
        if reason:
            self._refuse(name, reason)
        return names

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
        if not all(name.isidentifier() for name in names):
            self._refuse("layers_pattern", "holds something else than plain module names")
            return ()
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
            self._refuse(name, f"cannot be read: {error}")
            return ()
        self.rules += found
        reason = _check_number(self.rules)
        if reason:
            self._refuse(name, reason)
            return ()
        for pattern, value in found.items():
            reason = patterns.refusal(pattern) or check(value)
            if reason:
                self._refuse(name, f"entry {_show(pattern)} {reason}")
        return tuple(found.items())

    def _check_targets(self, config: AdapterConfig) -> None:
        targets = config.target_modules
        if not targets:
            self._refuse(
                "target_modules", "is missing; save the adapter with PEFT, which writes it"
            )
        layered = config.layers_to_transform is not None or config.layers_pattern
        if layered and isinstance(targets, str):
            self._refuse("layers_to_transform", "needs target_modules to be a list of names")

    def _refuse_the_rest(self) -> None:
        for name, value in self.raw.items():
            if name in _HARMLESS or value is None or value is False or value in ([], {}):
                continue
            reason = _REFUSED.get(name, "this field is unknown, so its effect cannot be honoured")
            self._refuse(_show(name), f"is {_show(value)}: {reason}")


def _is_init(value: object) -> bool:
    return isinstance(value, str) and value in _INITS


def is_all_linear(targets: frozenset[str] | str) -> bool:
    """True for PEFT's shorthand for all linear layers but the output head."""
    return isinstance(targets, str) and targets.lower() == "all-linear"


def _check_rank(rank: int) -> str | None:
    return None if 1 <= rank <= MAX_RANK else f"is {rank}; ranks are 1 to {MAX_RANK}"


def _check_alpha(alpha: float) -> str | None:
    return None if math.isfinite(alpha) and abs(alpha) <= 1e6 else f"is {alpha}, out of range"


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


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
