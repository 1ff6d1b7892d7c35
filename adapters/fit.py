"""Whether what a file holds is what its config asks for on this base model: modules and shapes."""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from loraplex.adapters import targets
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.claims import Claims, Role
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.errors import Problem
from loraplex.adapters.tensor_file import TensorEntry

_LISTED = 5
A_ROLES = (Role.LORA_A, Role.EMBEDDING_A, Role.PARAMETER_A)
_PAIRS = (Role.LORA_A, Role.EMBEDDING_A)
_RANKED = (
    *(Role.LORA_A, Role.LORA_B, Role.EMBEDDING_A, Role.EMBEDDING_B),
    *(Role.PARAMETER_A, Role.PARAMETER_B),
)
_WEIGHTS = (Role.SAVED_WEIGHT, Role.BASE_WEIGHT)
_VECTORS = (Role.LORA_B_BIAS, Role.MAGNITUDE, Role.BASE_BIAS, Role.SAVED_BIAS)


def vocabulary(claims: Claims, base: BaseShapes) -> int | None:
    """Rows of the embedding of tokens and of its head, where an adapter makes them more.

    PEFT writes both weights after `resize_token_embeddings`; of tied ones either will do.
    """
    rows = {}
    for path in _vocabulary_modules(base):
        weights = [claims[path][role] for role in _WEIGHTS if role in claims.get(path, {})]
        rows[path] = max((_rows(entry) for entry in weights), default=0)
    is_known = all(rows.values()) or (
        base.is_tied and any(Role.BASE_WEIGHT in claims.get(path, {}) for path in rows)
    )
    longest = max(rows.values(), default=0)
    current = max((_of_base(path, base)[0] for path in rows), default=0)
    return longest if is_known and longest > current else None


def problems(
    config: AdapterConfig, claims: Claims, base: BaseShapes, resolved: targets.Resolved
) -> list[Problem]:
    """Reasons why these tensors, as this config places them, are no adapter of the base model;
    `resolved` is the config on that, for the claimed paths."""
    fit = _Fit(config, claims, base, vocabulary(claims, base), resolved.targeted, resolved.rank_of)
    return [
        *fit.pairs(),
        *fit.saved(),
        *fit.tokens(),
        *fit.base_weights(),
        *fit.biases(),
        *fit.parameters(),
        *fit.shapes(),
    ]


def have_their_shapes(config: AdapterConfig, claims: Claims, base: BaseShapes) -> bool:
    """True if each tensor has a place on the base model, and the shape that is asked for there by
    the rank of its own pair. It matches no pattern."""
    rank_of = {path: rank_in_file(roles, path, base) for path, roles in claims.items()}
    fit = _Fit(config, claims, base, vocabulary(claims, base), frozenset(), rank_of)
    return all(map(fit.has_its_shapes, claims))


def rank_in_file(roles: Mapping[Role, TensorEntry], path: str, base: BaseShapes | None) -> int:
    """By the shape of A, which holds the ranks of all experts for a parameter; 0 without one."""
    shape = next((roles[role].shape for role in A_ROLES if role in roles), ())
    rank = shape[0] if shape else 0
    experts = base.parameters.get(path, ()) if base is not None else ()
    return rank // experts[0] if len(experts) == 3 else rank


@dataclass(frozen=True, slots=True)
class _Fit:
    config: AdapterConfig
    claims: Claims
    base: BaseShapes
    vocabulary: int | None
    targeted: frozenset[str]
    rank_of: Mapping[str, int]

    def pairs(self) -> Iterator[Problem]:
        """Each target has a pair with all that belongs to it, and nothing else has one."""
        expected = self.targeted
        found = {path for path in self.claims if self._has(path, *_PAIRS)}
        known = self.base.linears.keys() | self.base.embeddings.keys()
        if not expected and not targets.parameters(self.config, self.base):
            yield Problem("target_modules", "", "names no module of the base model")
        yield from _listed(expected - found, "targeted by the config but not in the file")
        yield from _listed((found & known) - expected, "in the file but not targeted by the config")
        yield from _listed(
            found - known,
            "not a linear layer of the base model that sees every token (experts do not)",
        )
        embedded = expected & self.base.embeddings.keys()
        for name, is_on in (
            ("lora_bias", self.config.lora_bias),
            ("alora_invocation_tokens", bool(self.config.invocation_tokens)),
        ):
            if is_on and embedded:
                yield Problem(
                    name, "", f"cannot be combined with a targeted embedding: {_names(embedded)}"
                )
        yield from self._belonging("use_dora", self.config.use_dora, Role.MAGNITUDE, found)
        yield from self._belonging("lora_bias", self.config.lora_bias, Role.LORA_B_BIAS, found)

    def _belonging(self, name: str, is_on: bool, role: Role, pairs: Set[str]) -> Iterator[Problem]:
        having = {path for path in self.claims if self._has(path, role)}
        if is_on:
            yield from _listed(pairs - having, f"has no {role.value}, which {name} asks for")
            yield from _listed(having - pairs, f"has {role.value} but no pair")
        else:
            yield from _listed(having, f"has {role.value}, but {name} is false")

    def saved(self) -> Iterator[Problem]:
        """Modules that are replaced are heads, embeddings or linear layers, and nothing else."""
        is_saved = targets.saved(self.config, self.base)
        known = self.base.linears.keys() | self.base.embeddings.keys()
        expected = {path for path in known if is_saved(path)}
        found = {path for path in self.claims if self._has(path, Role.SAVED_WEIGHT)}
        reason = "names no head, embedding or linear layer of the base model"
        for name in self.config.modules_to_save:
            if not any(path.endswith(name) for path in known):
                yield Problem("modules_to_save", name, reason)
        yield from _listed(expected - found, "in modules_to_save but not in the file")
        yield from _listed(
            found - known, "in modules_to_save, which serves heads, embeddings and linear layers"
        )
        yield from _listed(
            expected & self.targeted,
            "in modules_to_save and a target, which PEFT cannot combine",
        )

    def tokens(self) -> Iterator[Problem]:
        """Rows are those of the vocabulary, and of modules that are not replaced or adapted."""
        rows = targets.token_rows(self.config, self.base)
        head = targets.head_with_rows_of_embedding(self.config, self.base)
        places = _vocabulary_modules(self.base)
        found = {path for path in self.claims if self._has(path, Role.TOKEN_ROWS)}
        for tokens in self.config.trainable_tokens:
            end = tokens.module or self.base.token_embedding or "embed_tokens"
            if not any(path.endswith(end) for path in places):
                reason = "neither the embedding of tokens nor the output head"
                yield Problem("trainable_token_indices", end, reason)
            too_large = [index for index in tokens.indices if index >= self._rows_of(places)]
            if too_large:
                reason = f"the vocabulary has {self._rows_of(places)} tokens"
                yield Problem("trainable_token_indices", str(too_large[0]), reason)
        changed = rows.keys() | ({head} if head else set())
        yield from _listed(
            rows.keys() - set(places),
            "has token rows, which only the embedding of tokens and the output head may",
        )
        yield from _listed(
            rows.keys() - found, "has no rows, which trainable_token_indices asks for"
        )
        yield from _listed(
            found - changed, "has rows, but trainable_token_indices does not name it"
        )
        is_saved = targets.saved(self.config, self.base)
        adapted = self.targeted
        yield from _listed(
            {path for path in changed if is_saved(path) or path in adapted},
            "has token rows and is saved or a target, which PEFT cannot combine",
        )
        if (
            self.config.ensure_weight_tying
            and self.base.is_tied
            and rows.keys() > {self.base.token_embedding}
        ):
            reason = "has other tokens for the head tied to the embedding than for the embedding"
            yield Problem("trainable_token_indices", "", reason)
        if self.config.invocation_tokens and self.vocabulary is not None:
            reason = (
                f"the adapter has {self.vocabulary} tokens, more than the base model, which could "
                "not read those before the invocation"
            )
            yield Problem("alora_invocation_tokens", "", reason)
        for index in self.config.invocation_tokens:
            if index >= self._rows_of(places):
                reason = f"the vocabulary has {self._rows_of(places)} tokens"
                yield Problem("alora_invocation_tokens", str(index), reason)

    def base_weights(self) -> Iterator[Problem]:
        """PEFT copies weights of the embedding of tokens and of the head alone."""
        places = set(_vocabulary_modules(self.base))
        found = {path for path in self.claims if self._has(path, Role.BASE_WEIGHT)}
        yield from _listed(found - places, "holds a weight, but modules_to_save does not name it")

    def biases(self) -> Iterator[Problem]:
        """All biases of the base, those of the targets, or those beside copied weights."""
        found = {path for path in self.claims if self._has(path, Role.BASE_BIAS)}
        is_saved = targets.saved(self.config, self.base)
        known = {path for path in self.base.biases if not is_saved(path)}
        asked = {
            "none": set(),
            "all": known,
            "lora_only": known & self.targeted,
        }[self.config.bias]
        copied = set(_vocabulary_modules(self.base)) & known
        yield from _listed(asked - found, f"has no bias, which bias={self.config.bias} asks for")
        yield from _listed(
            (found & known) - asked - copied, f"has a bias, but bias is {self.config.bias}"
        )
        yield from _listed(found - known, "has a bias that the base model does not have")
        beside = {path for path in self.claims if self._has(path, Role.SAVED_BIAS)}
        whole = {path for path in self.claims if self._has(path, Role.SAVED_WEIGHT)}
        yield from _listed(
            beside - self.base.biases.keys(), "has a bias that the base model does not have"
        )
        yield from _listed((whole & self.base.biases.keys()) - beside, "is saved without its bias")

    def parameters(self) -> Iterator[Problem]:
        """Each targeted parameter has a pair."""
        expected = {
            f"{module}.{name}"
            for module, names in targets.parameters(self.config, self.base).items()
            for name in names
        }
        found = {path for path in self.claims if self._has(path, Role.PARAMETER_A)}
        yield from _listed(expected - found, "targeted by the config but not in the file")
        for end in sorted(self.config.target_parameters):
            if not any(path == end or path.endswith(f".{end}") for path in self.base.parameters):
                reason = (
                    "no parameter of the base model that holds experts; "
                    "linear layers are targeted by target_modules"
                )
                yield Problem("target_parameters", end, reason)

    def shapes(self) -> Iterator[Problem]:
        """Each tensor has the shape that the base model and the module's rank ask for."""
        rank_of = self.rank_of
        for path, roles in sorted(self.claims.items()):
            needed = self._shapes(path, rank_of.get(path, 0))
            for role, entry in roles.items():
                if role in needed and entry.shape not in needed[role]:
                    yield _misfit(entry, needed[role], rank_of[path] if role in _RANKED else None)
                if role in _PAIRS and role not in needed and needed:
                    yield Problem(entry.name[:200], "", f"{path} is of another kind of layer")

    def has_its_shapes(self, path: str) -> bool:
        """True if all of a module's tensors are known there, and as large as they must be."""
        needed = self._shapes(path, self.rank_of[path])
        return all(
            role in needed and entry.shape in needed[role]
            for role, entry in self.claims[path].items()
        )

    def _shapes(self, path: str, rank: int) -> Mapping[Role, tuple[tuple[int, ...], ...]]:
        if path in self.base.parameters:
            return _of_parameter(self.base.parameters[path], rank)
        if path in self.base.linears or path in self.base.embeddings:
            return self._of_module(path, rank)
        biases = self.base.biases
        return {Role.BASE_BIAS: ((biases[path],),)} if path in biases else {}

    def _of_module(self, path: str, rank: int) -> Mapping[Role, tuple[tuple[int, ...], ...]]:
        out, width = _of_base(path, self.base)
        if self.vocabulary is not None and path in _vocabulary_modules(self.base):
            out = self.vocabulary
        head = targets.head_with_rows_of_embedding(self.config, self.base)
        rows = targets.token_rows(self.config, self.base)
        given = rows.get(path) or (rows[self.base.token_embedding or ""] if path == head else ())
        shapes: dict[Role, tuple[int, ...]] = {
            Role.SAVED_WEIGHT: (out, width),
            Role.BASE_WEIGHT: (out, width),
        }
        if given:
            shapes[Role.TOKEN_ROWS] = (len(given), width)
        if path in self.base.embeddings:
            shapes |= {Role.EMBEDDING_A: (rank, out), Role.EMBEDDING_B: (width, rank)}
            shapes[Role.MAGNITUDE] = (width,)
            return {role: (shape,) for role, shape in shapes.items()}
        shapes |= {Role.LORA_A: (rank, width), Role.LORA_B: (out, rank)}
        shapes |= dict.fromkeys(_VECTORS, (out,))
        needed = {role: (shape,) for role, shape in shapes.items()}
        if path in self.base.heads:
            return needed
        # A Conv1D saves its weight as [in, out]; the model knows, at load.
        return needed | {Role.SAVED_WEIGHT: ((out, width), (width, out))}

    def _rows_of(self, places: Iterable[str]) -> int:
        return self.vocabulary or max((_of_base(path, self.base)[0] for path in places), default=0)

    def _has(self, path: str, *roles: Role) -> bool:
        return any(role in self.claims.get(path, {}) for role in roles)


def _of_parameter(shape: tuple[int, ...], rank: int) -> Mapping[Role, tuple[tuple[int, ...], ...]]:
    experts, out, width = shape if len(shape) == 3 else (1, *shape)
    total = rank * experts
    return {Role.PARAMETER_A: ((total, width),), Role.PARAMETER_B: ((out, total),)}


def _vocabulary_modules(base: BaseShapes) -> list[str]:
    return [*([base.token_embedding] if base.token_embedding else []), *sorted(base.heads)]


def _of_base(path: str, base: BaseShapes) -> tuple[int, int]:
    return base.linears[path] if path in base.linears else base.embeddings[path]


def _rows(entry: TensorEntry) -> int:
    return entry.shape[0] if entry.shape else 0


def _misfit(entry: TensorEntry, needed: tuple[tuple[int, ...], ...], rank: int | None) -> Problem:
    shapes = " or ".join(map(str, dict.fromkeys(needed)))
    needs = "the base model needs" if rank is None else f"the base model and rank {rank} need"
    return Problem(entry.name[:200], str(entry.shape), f"{needs} the shape {shapes}")


def _listed(found: Set[str], reason: str) -> list[Problem]:
    """One problem for many modules, of which it shows the first few."""
    return [Problem(_names(found), "", reason)] if found else []


def _names(found: Set[str]) -> str:
    names = [name[:200] for name in sorted(found)]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more}"
