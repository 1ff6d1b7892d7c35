"""What each tensor of a checkpoint is to the model: exactly the names that PEFT writes, by module.

A name is `base_model.model.<module>.<part>`. The same part may be two things: `….weight` is a
module that the adapter replaces if `modules_to_save` names it, and else a copy of the base's; a
pair on a module of experts belongs to one of its parameters. So claims need config and base model.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.errors import Problem
from loraplex.adapters.targets import (
    head_with_rows_of_embedding,
    parameters,
    saved,
)
from loraplex.adapters.tensor_file import TensorEntry


class Role(Enum):
    """What a tensor is to its module. `rows` is the vocabulary, for a head also its `out`."""

    LORA_A = "lora_A"
    """[rank, in] of a linear layer: y += scale · (B (A x) + bias)."""
    LORA_B = "lora_B"
    """[out, rank]."""
    LORA_B_BIAS = "lora_B_bias"
    """[out]; scaled as the rest of the update is."""
    EMBEDDING_A = "lora_embedding_A"
    """[rank, rows] of an embedding: y += scale · B A[:, token]."""
    EMBEDDING_B = "lora_embedding_B"
    """[width, rank]."""
    MAGNITUDE = "lora_magnitude_vector"
    """DoRA's: [out] of a linear layer, [width] of an embedding."""
    BASE_BIAS = "bias"
    """[out], in place of the base's bias of the module."""
    SAVED_WEIGHT = "saved_weight"
    """[out, in] or [rows, width], in place of the base's weight of the module."""
    SAVED_BIAS = "saved_bias"
    """[out], beside a saved weight."""
    TOKEN_ROWS = "token_rows"  # noqa: S105  no password
    """[tokens, width]: rows in place of those of `targets.token_rows`."""
    BASE_WEIGHT = "base_weight"
    """[out, in] or [rows, width]: the base's weight as the trainer had it. The same as the base's,
    or longer: then its vocabulary was extended."""
    PARAMETER_A = "parameter_A"
    """[rank · experts, in] of a bare parameter, expert after expert; its path is the module."""
    PARAMETER_B = "parameter_B"
    """[out, rank · experts], the expert running fastest."""


Claims = Mapping[str, Mapping[Role, TensorEntry]]
"""By path of module or parameter."""

_PREFIX = "base_model.model."
_PARTS: Mapping[str, Role | None] = MappingProxyType(
    {
        "lora_A.weight": Role.LORA_A,
        "lora_B.weight": Role.LORA_B,
        "lora_B.bias": Role.LORA_B_BIAS,
        "lora_embedding_A": Role.EMBEDDING_A,
        "lora_embedding_B": Role.EMBEDDING_B,
        "lora_magnitude_vector": Role.MAGNITUDE,
        "base_layer.weight": Role.BASE_WEIGHT,
        "base_layer.bias": Role.BASE_BIAS,
        "token_adapter.trainable_tokens_delta": Role.TOKEN_ROWS,
        "token_adapter.base_layer.weight": Role.BASE_WEIGHT,
        "original_module.weight": Role.BASE_WEIGHT,
        # Written beside a saved module and read by nothing.
        "modules_to_save.weight": None,
        "modules_to_save.bias": None,
        "original_module.bias": None,
        "weight": Role.BASE_WEIGHT,
        "bias": Role.BASE_BIAS,
    }
)
_NAME = re.compile(
    rf"{re.escape(_PREFIX)}(?P<module>.+?)\.(?P<part>{'|'.join(map(re.escape, _PARTS))})"
)
_BESIDE_SAVED = ("original_module.", "modules_to_save.")
_SAVED = MappingProxyType({"weight": Role.SAVED_WEIGHT, "bias": Role.SAVED_BIAS})
_MATES = MappingProxyType(
    {
        Role.LORA_A: Role.LORA_B,
        Role.LORA_B: Role.LORA_A,
        Role.EMBEDDING_A: Role.EMBEDDING_B,
        Role.EMBEDDING_B: Role.EMBEDDING_A,
        Role.LORA_B_BIAS: Role.LORA_B,
        Role.SAVED_BIAS: Role.SAVED_WEIGHT,
        Role.PARAMETER_A: Role.PARAMETER_B,
        Role.PARAMETER_B: Role.PARAMETER_A,
    }
)
"""What a tensor is nothing without."""


def claim(
    entries: Iterable[TensorEntry], config: AdapterConfig, base: BaseShapes | None
) -> tuple[Claims, list[Problem]]:
    """Sort tensors by module and role; what is left over, or there twice, is a problem.

    Without a base model, pairs of parameters stay under the paths that the file gives them, and
    what is trained of a tied embedding is not given to its head.
    """
    claims: dict[str, dict[Role, TensorEntry]] = {}
    problems: list[Problem] = []
    is_saved = saved(config, base)
    for entry in entries:
        name = _NAME.fullmatch(entry.name)
        if name is None:
            problems.append(Problem(entry.name[:200], "", "not a tensor that PEFT's LoRA writes"))
            continue
        module, part = name["module"], name["part"]
        if part.startswith(_BESIDE_SAVED) and not is_saved(module):
            reason = "modules_to_save does not name this module"
            problems.append(Problem(entry.name[:200], "", reason))
            continue
        role = _SAVED.get(part, _PARTS[part]) if is_saved(module) else _PARTS[part]
        if role is None:
            continue
        if role in claims.setdefault(module, {}):
            problems.append(Problem(entry.name[:200], "", f"a second {role.value} of {module}"))
        claims[module][role] = entry
    if base is not None:
        _give_to_parameters(claims, config, base)
        _give_to_head(claims, config, base)
    problems += _halves(claims)
    return MappingProxyType({m: MappingProxyType(roles) for m, roles in claims.items()}), problems


def _give_to_parameters(
    claims: dict[str, dict[Role, TensorEntry]], config: AdapterConfig, base: BaseShapes
) -> None:
    """Move pairs of parameters to the parameters' paths, which files do not name.

    PEFT wraps a module once for each of its targeted parameters, in the module's order, so the
    last one is outermost and keeps the module's own path.
    """
    for module, names in parameters(config, base).items():
        for depth, name in enumerate(reversed(names)):
            pair = claims.get(module + ".base_layer" * depth)
            if pair is None:
                continue
            found = {Role.PARAMETER_A: Role.LORA_A, Role.PARAMETER_B: Role.LORA_B}
            claims[f"{module}.{name}"] = {
                role: pair.pop(side) for role, side in found.items() if side in pair
            }
    for module in [module for module, roles in claims.items() if not roles]:
        del claims[module]


def _give_to_head(
    claims: dict[str, dict[Role, TensorEntry]], config: AdapterConfig, base: BaseShapes
) -> None:
    """Tokens trained in a tied embedding are trained in the head too; a file may say it twice."""
    head = head_with_rows_of_embedding(config, base)
    if head is None or base.token_embedding is None:
        return
    rows = claims.get(base.token_embedding, {}).get(Role.TOKEN_ROWS)
    if rows is not None:
        claims.setdefault(head, {})[Role.TOKEN_ROWS] = rows


def _halves(claims: Mapping[str, Mapping[Role, TensorEntry]]) -> list[Problem]:
    return [
        Problem(module[:200], "", f"has {role.value} but no {mate.value}")
        for module, roles in sorted(claims.items())
        for role, mate in _MATES.items()
        if role in roles and mate not in roles
    ]
