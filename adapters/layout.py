"""What of a checkpoint is kept in memory, module by module, and how many bytes that is.

Without torch: what an adapter takes must be known before it is loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.claims import Claims, Role
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.fit import vocabulary
from loraplex.adapters.targets import head_with_rows_of_embedding, token_rows
from loraplex.adapters.tensor_file import TensorEntry

VECTOR_BYTES = 4
"""Of each number of gains and offsets, which are float32 whatever is served."""
_ID_BYTES = 8
_AS_STORED = (
    *(Role.LORA_A, Role.EMBEDDING_A, Role.EMBEDDING_B),
    *(Role.SAVED_WEIGHT, Role.SAVED_BIAS, Role.PARAMETER_A, Role.PARAMETER_B),
)
_OFFSETS = frozenset({Role.LORA_B_BIAS, Role.BASE_BIAS})


@dataclass(frozen=True, slots=True)
class TokenSources:
    """Where the rows of single tokens come from."""

    trained: tuple[tuple[int, int], ...] = ()
    """Token id and row of the tensor of `Role.TOKEN_ROWS`, by rising id."""
    added: tuple[int, ...] = ()
    """Other tokens beyond the base model's: rows of the same number of `Role.BASE_WEIGHT`."""

    @property
    def num_tokens(self) -> int:
        """How many tokens have rows."""
        return len(self.trained) + len(self.added)


@dataclass(frozen=True, slots=True)
class ModuleLayout:
    """What an adapter keeps for one module."""

    roles: Mapping[Role, TensorEntry]
    num_outputs: int
    """Of the base's module: out features, or width of an embedding. What a head has beyond them are
    tokens."""
    tokens: TokenSources
    has_gain: bool
    has_offset: bool

    @property
    def is_updated(self) -> bool:
        """True if there is a low-rank update."""
        return Role.LORA_A in self.roles or Role.EMBEDDING_A in self.roles

    @property
    def have_tokens_bias(self) -> bool:
        """True if what a head makes of added tokens has a bias."""
        is_plain = Role.TOKEN_ROWS not in self.roles
        return bool(self.tokens.added) and is_plain and bool(_OFFSETS & self.roles.keys())

    @property
    def tokens_key(self) -> tuple[object, ...]:
        """Equal for modules whose rows of tokens are the same: those are kept once."""
        sources = [self.roles.get(role) for role in (Role.TOKEN_ROWS, Role.BASE_WEIGHT)]
        own = id(self) if self.tokens.added and (self.is_updated or self.have_tokens_bias) else None
        return (self.tokens, *(source and source.name for source in sources), own)


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    """What an adapter keeps in memory."""

    modules: Mapping[str, ModuleLayout]
    vocab_size: int | None
    """Tokens that it has; None if they are those of the base model."""

    @classmethod
    def of(cls, claims: Claims, config: AdapterConfig, base: BaseShapes) -> "AdapterLayout":
        """Lay out what was claimed."""
        vocab_size = vocabulary(claims, base)
        if vocab_size is not None:
            claims = _with_rows_of_tied_head(claims, base)
        token_ids = _token_ids(config, base)
        modules = {
            path: _layout(path, roles, token_ids.get(path, ()), base)
            for path, roles in claims.items()
        }
        return cls(MappingProxyType(modules), vocab_size)

    def num_bytes(self, bytes_per_element: int) -> int:
        """Bytes of all tensors, once they are in a dtype of so many bytes."""
        total = 0
        tokens: dict[tuple[object, ...], int] = {}
        for module in self.modules.values():
            total += sum(
                module.roles[role].num_elements * bytes_per_element
                for role in _AS_STORED
                if role in module.roles
            )
            rank = module.roles[Role.LORA_B].shape[1] if Role.LORA_B in module.roles else 0
            total += rank * module.num_outputs * bytes_per_element
            total += (module.has_gain + module.has_offset) * module.num_outputs * VECTOR_BYTES
            if module.tokens.num_tokens:
                numbers = _width(module) + module.have_tokens_bias
                per_token = numbers * bytes_per_element + _ID_BYTES
                tokens[module.tokens_key] = module.tokens.num_tokens * per_token
        return total + sum(tokens.values())


def _with_rows_of_tied_head(claims: Claims, base: BaseShapes) -> Claims:
    """Tokens that were added to a tied embedding were added to its head too."""
    embedding = claims.get(base.token_embedding or "", {})
    if not base.is_tied or Role.BASE_WEIGHT not in embedding:
        return claims
    added = {Role.BASE_WEIGHT: embedding[Role.BASE_WEIGHT]}
    return {**claims, **{head: {**added, **claims.get(head, {})} for head in base.heads}}


def _token_ids(config: AdapterConfig, base: BaseShapes) -> dict[str, tuple[int, ...]]:
    ids = token_rows(config, base)
    head = head_with_rows_of_embedding(config, base)
    if head is not None and base.token_embedding is not None:
        ids[head] = ids[base.token_embedding]
    return ids


def _layout(
    path: str, roles: Mapping[Role, TensorEntry], token_ids: tuple[int, ...], base: BaseShapes
) -> ModuleLayout:
    is_embedding = path in base.embeddings
    shape = base.embeddings.get(path) or base.linears.get(path)
    tokens = TokenSources()
    if shape is not None:
        tokens = _sources(roles, token_ids, shape[0])
    has_gain = Role.MAGNITUDE in roles
    # PEFT computes a head with rows of single tokens without its bias.
    loses_bias = has_gain or (Role.TOKEN_ROWS in roles and not is_embedding)
    return ModuleLayout(
        roles=roles,
        num_outputs=_num_outputs(path, base),
        tokens=tokens,
        has_gain=has_gain,
        has_offset=bool(_OFFSETS & roles.keys()) or (loses_bias and path in base.biases),
    )


def _num_outputs(path: str, base: BaseShapes) -> int:
    if path in base.embeddings:
        return base.embeddings[path][1]
    if path in base.linears:
        return base.linears[path][0]
    return base.biases.get(path, 0)


def _sources(
    roles: Mapping[Role, TensorEntry], token_ids: tuple[int, ...], num_rows: int
) -> TokenSources:
    trained = {}
    if Role.TOKEN_ROWS in roles:
        trained = {token_id: row for row, token_id in enumerate(token_ids)}
    copy = None if Role.SAVED_WEIGHT in roles else roles.get(Role.BASE_WEIGHT)
    added = range(num_rows, num_rows if copy is None else copy.shape[0])
    return TokenSources(
        tuple(sorted(trained.items())),
        tuple(token_id for token_id in added if token_id not in trained),
    )


def _width(module: ModuleLayout) -> int:
    source = module.roles.get(Role.TOKEN_ROWS) or module.roles[Role.BASE_WEIGHT]
    return source.shape[1]
