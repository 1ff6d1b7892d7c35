"""Which modules a config adapts, and with which rank and scale, exactly as PEFT resolves them."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from loraplex.adapters import patterns
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.config import AdapterConfig, is_all_linear

T = TypeVar("T")


def targeted(config: AdapterConfig, base: BaseShapes) -> frozenset[str]:
    """Linear layers and embeddings of the base that the config names
    (`peft.tuners.tuners_utils.check_target_module_exists`)."""
    if is_all_linear(config.target_modules):
        found = frozenset(base.linears) - base.heads
    else:
        paths = base.linears.keys() | base.embeddings.keys()
        found = _named(config.target_modules, paths, config)
    return found - _named(config.exclude_modules, found, None)


def ranks(config: AdapterConfig, modules: Iterable[str]) -> dict[str, int]:
    """Rank of each module."""
    return _first_match(config.rank_pattern, modules, config.rank)


def scales(config: AdapterConfig, ranks_of: Mapping[str, int]) -> dict[str, float]:
    """Factor on B·A of each module, from its rank: alpha/r, or alpha/√r with rsLoRA."""
    alphas = _first_match(config.alpha_pattern, ranks_of, config.alpha)
    return {
        module: alphas[module] / (math.sqrt(rank) if config.use_rslora else rank)
        for module, rank in ranks_of.items()
    }


def _named(
    names: frozenset[str] | str, paths: Iterable[str], layered: AdapterConfig | None
) -> frozenset[str]:
    """Paths that a regex or a set of names selects. Layer indices restrict only those found by
    their suffix: a full path always counts."""
    if isinstance(names, str):
        return patterns.full_matches(names, paths)
    return frozenset(
        path
        for path in paths
        if path in names
        or (
            any(suffix in names for suffix in _suffixes(path))
            and (layered is None or _layer_selected(path, layered))
        )
    )


def _suffixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[start:]) for start in range(1, len(parts))]


def _layer_selected(path: str, config: AdapterConfig) -> bool:
    if config.layers_to_transform is None:
        return True
    # The first numbered segment is the layer; later ones may number experts.
    names = config.layers_pattern or (r"[^.]*",)
    start = r"(?:^|.*?\.)" if config.layers_pattern else r".*?\."
    found = (re.match(rf"{start}{name}\.(\d+)\.", path) for name in names)
    index = next((int(match[1]) for match in found if match), None)
    return index in config.layers_to_transform


def _first_match(
    rules: Iterable[tuple[str, T]], modules: Iterable[str], default: T
) -> dict[str, T]:
    """Value of each module by the first rule that matches it
    (`peft.utils.other.get_pattern_key`)."""
    values = dict.fromkeys(modules, default)
    open_modules = set(values)
    for pattern, value in rules:
        matched = patterns.suffix_matches(pattern, open_modules)
        values.update(dict.fromkeys(matched, value))
        open_modules -= matched
    return values
