"""Fields of adapter_config.json that PEFT cannot combine, or that together mean nothing.

Most of these PEFT refuses itself: `LoraConfig.__post_init__`, `LoraLayer.resolve_lora_variant`,
`ParamWrapper.__init__` (https://github.com/huggingface/peft, 0.21).
"""

from collections.abc import Iterator, Mapping

from loraplex.adapters.errors import Problem

_ONLY_AFTER = "activated LoRA changes nothing before its invocation, and this would"


def impossible(raw: Mapping[str, object]) -> Iterator[Problem]:
    """Yield what is wrong between the fields of a config, whatever the types of their values."""
    yield from _targets(raw)
    yield from _variants(raw)
    if raw.get("target_parameters"):
        yield from _parameters(raw)
    if raw.get("alora_invocation_tokens"):
        yield from _activated(raw)


def _targets(raw: Mapping[str, object]) -> Iterator[Problem]:
    targets = raw.get("target_modules")
    if targets is None or (targets in ("", []) and not raw.get("target_parameters")):
        reason = "is missing; save the adapter with PEFT, which writes it"
        yield Problem("target_modules", "", reason)
    for name in ("layers_to_transform", "layers_pattern"):
        if isinstance(targets, str) and raw.get(name) is not None:
            yield Problem(name, repr(raw[name])[:80], "needs target_modules to be a list of names")
    if raw.get("layers_pattern") and raw.get("layers_to_transform") is None:
        reason = "means nothing without layers_to_transform"
        yield Problem("layers_pattern", repr(raw["layers_pattern"])[:80], reason)


def _variants(raw: Mapping[str, object]) -> Iterator[Problem]:
    init = raw.get("init_lora_weights", True)
    found = [name for name in ("use_dora", "alora_invocation_tokens") if raw.get(name)]
    found += ["init_lora_weights=mica"] if init == "mica" else []
    if len(found) > 1:
        yield Problem(found[0], "", f"cannot be combined with {' and '.join(found[1:])}")
    if raw.get("lora_bias") and raw.get("use_dora"):
        yield Problem("lora_bias", "True", "cannot be combined with use_dora")
    if raw.get("lora_bias") and not isinstance(init, bool):
        reason = "cannot be combined with an init_lora_weights other than true and false"
        yield Problem("lora_bias", "True", reason)


def _parameters(raw: Mapping[str, object]) -> Iterator[Problem]:
    names = ("lora_dropout", "fan_in_fan_out", "lora_bias", "use_dora", "alora_invocation_tokens")
    found = [name for name in names if raw.get(name)]
    found += ["init_lora_weights=mica"] if raw.get("init_lora_weights") == "mica" else []
    if found:
        yield Problem("target_parameters", "", f"cannot be combined with {', '.join(found)}")


def _activated(raw: Mapping[str, object]) -> Iterator[Problem]:
    if raw.get("task_type") != "CAUSAL_LM":
        reason = "activated LoRA works only with CAUSAL_LM; in other models it is never invoked"
        yield Problem("task_type", repr(raw.get("task_type"))[:80], reason)
    for name in ("modules_to_save", "trainable_token_indices"):
        if raw.get(name):
            yield Problem(name, repr(raw[name])[:80], _ONLY_AFTER)
    if raw.get("bias", "none") != "none":
        yield Problem("bias", repr(raw["bias"])[:80], _ONLY_AFTER)
