"""What of a checkpoint is kept in memory, module by module, and how many bytes that is.

Without torch: what an adapter takes must be known before it is loaded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.claims import Claims, Role
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.fit import vocabulary
from loraplex.adapters.targets import head_with_rows_of_embedding, token_rows
from loraplex.adapters.tensor_file import TensorEntry

_VECTOR_BYTES = 4  # gains and offsets are float32 whatever is served
_ID_BYTES = 8
_WEIGHTS = (
    *(Role.LORA_A, Role.LORA_B, Role.EMBEDDING_A, Role.EMBEDDING_B),
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
    num_inputs: int
    """Of a linear layer: in features; of an embedding its width too."""
    tokens: TokenSources
    has_gain: bool
    has_offset: bool
    is_embedding: bool = False
    num_experts: int = 0
    """Of a parameter, the matrices that it holds."""

    @property
    def is_updated(self) -> bool:
        """True if there is a low-rank update."""
        return Role.LORA_A in self.roles or Role.EMBEDDING_A in self.roles

    def num_bytes(self, bytes_of: Callable[[TensorEntry], int]) -> int:
        """Bytes without rows of tokens; ``bytes_of`` tells those of each number of a weight."""
        found = [(role, self.roles[role]) for role in _WEIGHTS if role in self.roles]
        total = 0
        for role, entry in found:
            elements = entry.num_elements
            if role is Role.LORA_B:
                elements = entry.shape[1] * self.num_outputs
            total += elements * bytes_of(entry)
        return total + (self.has_gain + self.has_offset) * self.num_outputs * _VECTOR_BYTES

    def tokens_bytes(self, bytes_per_element: int) -> int:
        """Bytes of rows of tokens, which are float32 in the host's memory."""
        source = self.roles.get(Role.TOKEN_ROWS) or self.roles.get(Role.BASE_WEIGHT)
        if source is None:
            return 0
        per_token = (source.shape[1] + self.have_tokens_bias) * bytes_per_element + _ID_BYTES
        return self.tokens.num_tokens * per_token

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

    @property
    def host_bytes(self) -> int:
        """Bytes of all tensors in the host's memory, where weights stay as they are stored."""
        return self._sum(lambda entry: entry.num_bytes // max(entry.num_elements, 1), 4)

    def num_bytes(self, bytes_per_element: int) -> int:
        """Bytes of all tensors, once weights are in a dtype of so many bytes."""
        return self._sum(lambda _: bytes_per_element, bytes_per_element)

    def _sum(self, bytes_of: Callable[[TensorEntry], int], of_tokens: int) -> int:
        # Modules whose rows of tokens are the same share them.
        tokens = {m.tokens_key: m.tokens_bytes(of_tokens) for m in self.modules.values()}
        return sum(m.num_bytes(bytes_of) for m in self.modules.values()) + sum(tokens.values())


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
    shape = base.embeddings.get(path) or base.linears.get(path)
    has_gain = Role.MAGNITUDE in roles
    # PEFT computes a head with rows of single tokens without its bias.
    loses_bias = has_gain or (Role.TOKEN_ROWS in roles and path in base.linears)
    return ModuleLayout(
        roles=roles,
        num_outputs=_num_outputs(path, base),
        num_inputs=0 if shape is None else shape[1],
        tokens=TokenSources() if shape is None else _sources(roles, token_ids, shape[0]),
        has_gain=has_gain,
        has_offset=bool(_OFFSETS & roles.keys()) or (loses_bias and path in base.biases),
        is_embedding=path in base.embeddings,
        num_experts=_num_experts(base.parameters.get(path, ())),
    )


def _num_experts(shape: tuple[int, ...]) -> int:
    """A router's parameter is one matrix; so PEFT counts it as of one expert."""
    return shape[0] if len(shape) == 3 else 1


def _num_outputs(path: str, base: BaseShapes) -> int:
    if path in base.embeddings:
        return base.embeddings[path][1]
    return base.linears[path][0] if path in base.linears else base.biases.get(path, 0)


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
