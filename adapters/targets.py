"""Which modules a config adapts, and with which rank and scale, exactly as PEFT resolves them."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.config import AdapterConfig, is_all_linear
from loraplex.adapters.pattern_process import Kind, Query
from loraplex.adapters.patterns import Matcher

T = TypeVar("T")

_TIED_NAMES = ("embed_tokens", "lm_head")
"""PEFT ties by these names alone (`peft.utils.constants.EMBEDDING_LAYER_NAMES`)."""

_UNSOLVED = Matcher()


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a config's names and patterns come to on one base model."""

    targeted: frozenset[str]
    """See the function of this name."""
    rank_of: Mapping[str, int]
    """By path of module or parameter that the file has tensors of."""
    scale_of: Mapping[str, float]


def resolve(config: AdapterConfig, base: BaseShapes, paths: Iterable[str]) -> Resolved:
    """Match all patterns of a config, those that need a process in one.

    Of `paths`, which a file may name any number of, only those of the base model are resolved.

    Raises:
        PatternTimeout: a pattern was not matched in time.
    """
    matcher = matcher_for(config, base)
    known = base.linears.keys() | base.embeddings.keys() | base.parameters.keys()
    rank_of = ranks(config, known.intersection(paths), matcher)
    return Resolved(
        targeted(config, base, matcher),
        MappingProxyType(rank_of),
        MappingProxyType(scales(config, rank_of, matcher)),
    )


def matcher_for(config: AdapterConfig, base: BaseShapes) -> Matcher:
    """What solves the patterns of a config once for all functions here.

    Raises:
        PatternTimeout: as all functions that take a matcher, where they get none.
    """
    full = [config.target_modules, config.exclude_modules]
    rules = [rule for rule, _ in (*config.rank_pattern, *config.alpha_pattern)]
    queries = [
        *(Query(Kind.FULL, names) for names in full if isinstance(names, str)),
        *(Query(Kind.SUFFIX, rule) for rule in rules),
        *(Query(Kind.LAYERS, name) for name in config.layers_pattern),
    ]
    paths = dict.fromkeys((*base.linears, *base.embeddings, *base.parameters, *_TIED_NAMES))
    return Matcher.of(queries, paths)


def targeted(
    config: AdapterConfig, base: BaseShapes, matcher: Matcher = _UNSOLVED
) -> frozenset[str]:
    """Linear layers and embeddings of the base that get a pair of their own
    (`peft.tuners.tuners_utils.check_target_module_exists`)."""
    names = config.target_modules
    if is_all_linear(names):
        found = frozenset(base.linears) - base.heads
    else:
        found = _named(names, base.linears.keys() | base.embeddings.keys(), matcher)
        if not isinstance(names, str):
            found -= _outside_layers(found - names, config, matcher)
    tied = _tied_targets(config, base, matcher)
    found |= tied
    excluded = _named(config.exclude_modules, found, matcher)
    excluded |= _inside(config.modules_to_save, found)
    return (found - excluded) | (tied & base.heads)


def _tied_targets(config: AdapterConfig, base: BaseShapes, matcher: Matcher) -> frozenset[str]:
    """The embedding of tokens and its head, where one of them is a target and PEFT ties them."""
    if not _ties(config, base) or _names_tied_weight(config.modules_to_save):
        return frozenset()
    names = config.target_modules
    if isinstance(names, str):
        names = frozenset() if is_all_linear(names) else matcher.full(names, _TIED_NAMES)
    return _embedding_and_heads(base) if _names_tied_weight(names) else frozenset()


def saved(config: AdapterConfig, base: BaseShapes | None) -> Callable[[str], bool]:
    """Tell for a module's path whether the adapter replaces it as a whole
    (`peft.utils.other._set_trainable`: any end of the path will do, even within a name)."""
    names = config.modules_to_save
    tied: frozenset[str] = frozenset()
    if base is not None and _ties(config, base) and _names_tied_weight(names):
        tied = _embedding_and_heads(base)
    return lambda path: path in tied or path.endswith(names)


def token_rows(config: AdapterConfig, base: BaseShapes) -> dict[str, tuple[int, ...]]:
    """Token ids of each module that brings rows of its own
    (`peft.utils.other.set_additional_trainable_modules`)."""
    embedding = base.token_embedding or "embed_tokens"
    paths = base.linears.keys() | base.embeddings.keys()
    rows = {}
    for tokens in config.trainable_tokens:
        end = tokens.module or embedding
        for path in paths:
            if path.endswith(end):
                rows[path] = tokens.indices
    for head in base.heads if base.is_tied else ():
        if embedding in rows and rows.get(head) == rows[embedding]:
            del rows[head]  # the embedding's are the head's
    return rows


def head_with_rows_of_embedding(config: AdapterConfig, base: BaseShapes) -> str | None:
    """The tied head that gets the rows which the embedding of tokens brings."""
    rows = token_rows(config, base)
    if not base.is_tied or base.token_embedding not in rows:
        return None
    return next((head for head in base.heads if head not in rows), None)


def parameters(config: AdapterConfig, base: BaseShapes) -> dict[str, list[str]]:
    """Targeted parameters of each module, by name, in the module's order
    (`peft.tuners.tuners_utils.BaseTuner._inject_parameters`)."""
    found: dict[str, list[str]] = {}
    for path in base.parameters:
        if path in config.target_parameters or any(
            end in config.target_parameters for end in _suffixes(path)
        ):
            module, _, name = path.rpartition(".")
            found.setdefault(module, []).append(name)
    return found


def ranks(
    config: AdapterConfig, modules: Iterable[str], matcher: Matcher = _UNSOLVED
) -> dict[str, int]:
    """Rank of each module or parameter."""
    return _first_match(config.rank_pattern, modules, config.rank, matcher)


def scales(
    config: AdapterConfig, ranks_of: Mapping[str, int], matcher: Matcher = _UNSOLVED
) -> dict[str, float]:
    """Factor on B·A of each module, from its rank: alpha/r, or alpha/√r with rsLoRA."""
    alphas = _first_match(config.alpha_pattern, ranks_of, config.alpha, matcher)
    return {
        module: alphas[module] / (math.sqrt(rank) if config.use_rslora else rank)
        for module, rank in ranks_of.items()
    }


def _named(names: frozenset[str] | str, paths: Collection[str], matcher: Matcher) -> frozenset[str]:
    """Paths that a regex or a set of names selects."""
    if isinstance(names, str):
        return matcher.full(names, paths)
    return frozenset(
        path
        for path in paths
        if path in names or any(suffix in names for suffix in _suffixes(path))
    )


def _outside_layers(
    paths: Collection[str], config: AdapterConfig, matcher: Matcher
) -> frozenset[str]:
    """Paths of other layers than the config's; whoever is named in full is not asked for them."""
    if config.layers_to_transform is None:
        return frozenset()
    if config.layers_pattern:
        found = [matcher.layers(pattern, paths) for pattern in config.layers_pattern]
    else:
        # The first numbered segment is the layer; later ones may number experts.
        numbers = {path: re.match(r".*?\.[^.]*\.(\d+)\.", path) for path in paths}
        found = [{path: match[1] for path, match in numbers.items() if match}]
    of = {path: number for numbers in reversed(found) for path, number in numbers.items()}
    chosen = {path for path, number in of.items() if number}
    return frozenset(paths) - {
        path for path in chosen if int(of[path]) in config.layers_to_transform
    }


def _ties(config: AdapterConfig, base: BaseShapes) -> bool:
    return config.ensure_weight_tying and base.is_tied and base.token_embedding is not None


def _names_tied_weight(names: Iterable[str]) -> bool:
    return any(name.rpartition(".")[2] in _TIED_NAMES for name in names)


def _embedding_and_heads(base: BaseShapes) -> frozenset[str]:
    return base.heads | {base.token_embedding or ""}


def _inside(names: Iterable[str], paths: Iterable[str]) -> frozenset[str]:
    """Paths that have one of the names among their segments, where a dot in a name is any
    character, as in PEFT."""
    found = [re.compile(rf"(?:.*\.)?{name}(?:\..*)?") for name in names]
    return frozenset(path for path in paths if any(end.fullmatch(path) for end in found))


def _suffixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[start:]) for start in range(1, len(parts))]


def _first_match(
    rules: Iterable[tuple[str, T]], modules: Iterable[str], default: T, matcher: Matcher
) -> dict[str, T]:
    """Value of each module by the first rule that matches it
    (`peft.utils.other.get_pattern_key`)."""
    values = dict.fromkeys(modules, default)
    open_modules = set(values)
    for pattern, value in rules:
        matched = matcher.suffix(pattern, open_modules)
        values.update(dict.fromkeys(matched, value))
        open_modules -= matched
    return values
