"""What an adapter's config says, as far as it changes what is computed or must be present.

Fields and defaults: `peft.LoraConfig` (https://github.com/huggingface/peft), up to 0.21. How
adapter_config.json becomes such a value, fail-closed: `config_reader.py`.
"""

from dataclasses import dataclass
from typing import Literal

MAX_RANK = 512

Bias = Literal["none", "all", "lora_only"]


@dataclass(frozen=True, slots=True)
class TrainableTokens:
    """Tokens whose rows an adapter brings in place of the base model's."""

    module: str | None
    """End of the module's path; None for the embedding of tokens."""
    indices: tuple[int, ...]
    """Token ids, in the order of the rows."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """An adapter's config; the names of the fields are PEFT's where they mean the same."""

    rank: int = 8
    alpha: float = 8.0
    use_rslora: bool = False
    """Scale by alpha/√rank instead of alpha/rank."""
    target_modules: frozenset[str] | str = frozenset()
    """Names or name suffixes; or one regular expression; or `all-linear`."""
    exclude_modules: frozenset[str] | str = frozenset()
    target_parameters: frozenset[str] = frozenset()
    """Names or name suffixes of bare parameters."""
    layers_to_transform: frozenset[int] | None = None
    layers_pattern: tuple[str, ...] = ()
    rank_pattern: tuple[tuple[str, int], ...] = ()
    """Pattern to rank; the first that matches a module wins, so order matters."""
    alpha_pattern: tuple[tuple[str, float], ...] = ()
    use_dora: bool = False
    """A learned magnitude of each row of the weights (https://arxiv.org/abs/2402.09353)."""
    lora_bias: bool = False
    """A bias in B."""
    bias: Bias = "none"
    """Which biases of the base model were trained: all, or those of the targets."""
    modules_to_save: tuple[str, ...] = ()
    """Ends of the paths of modules that the adapter replaces as a whole."""
    trainable_tokens: tuple[TrainableTokens, ...] = ()
    ensure_weight_tying: bool = False
    """What is trained of the embedding is also that of the head tied to it."""
    invocation_tokens: tuple[int, ...] = ()
    """Activated LoRA: the adapter works from the last occurrence of these tokens on
    (https://arxiv.org/abs/2504.12397)."""
    base_model: str | None = None
    """What the trainer called the base model; informs, decides nothing."""


def is_all_linear(targets: frozenset[str] | str) -> bool:
    """True for PEFT's shorthand for all linear layers but the output head."""
    return isinstance(targets, str) and targets.lower() == "all-linear"
