"""What an adapter can be attached to: the shapes of the base model's weights, without torch."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Self

import msgspec

from loraplex.adapters.errors import BaseUnreadable, TensorFileInvalid
from loraplex.adapters.tensor_file import TensorEntry, read_entries

_FLOATS = frozenset({"F64", "F32", "BF16", "F16"})
# A header has no module types: these are transformers' names for nn.Embedding in causal models.
_EMBEDDINGS = frozenset(
    {"embed_tokens", "embed_in", "embed_positions", "embeddings", "embedding", "tok_embeddings"}
    | {"word_embeddings", "position_embeddings", "token_type_embeddings", "wte", "wpe", "shared"}
)
_TOKEN_EMBEDDINGS = frozenset({"embed_tokens", "embed_in", "word_embeddings", "wte"})
_HEADS = frozenset({"lm_head", "embed_out"})


# Files of other types do not tell the layers: some keep weights as [in, out], some have experts,
# or name modules otherwise than transformers does.
_HEADERS_TELL = frozenset(
    {
        *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
        *("phi3", "olmo2", "granite"),
    }
)


class _Config(msgspec.Struct):
    model_type: str | None = None
    tie_word_embeddings: bool | None = None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True)
class BaseShapes:
    """What of one base model an adapter can change, by module path."""

    linears: Mapping[str, tuple[int, int]]
    """Module path to (out, in) of each linear layer, the output head among them, tied or not."""
    embeddings: Mapping[str, tuple[int, int]]
    """Module path to (rows, width) of each embedding."""
    heads: frozenset[str]
    """Linear layers that turn hidden states into logits; `all-linear` leaves them out."""
    token_embedding: str | None = None
    """The embedding of tokens."""
    is_tied: bool = False
    """The head and the embedding of tokens share one weight."""
    biases: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Module path to length of each bias that is added to what the module makes: of linear layers
    and of norms."""
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Parameter path to (experts, out, in), of layers that keep all experts in one parameter, or to
    (out, in), of routers that are no linear layers; a module's own in its order. A worker tells
    them, headers do not."""

    @classmethod
    def read(cls, model_dir: Path) -> Self:
        """Read the headers of a model folder: one safetensors file, or the shards of an index.

        A worker knows the layers from the model itself; this is for where there is none.

        Raises:
            BaseUnreadable: the folder is missing, incomplete or corrupt, or headers do not tell
                the layers of such a model.
        """
        try:
            config = msgspec.convert(_json(model_dir / "config.json"), _Config)
            entries = [entry for path in weight_files(model_dir) for entry in read_entries(path)]
        except (OSError, ValueError, msgspec.ValidationError, TensorFileInvalid) as error:
            raise BaseUnreadable(f"base model in {model_dir} cannot be read: {error}") from error
        if config.model_type not in _HEADERS_TELL:
            raise BaseUnreadable(
                f"the files of a {config.model_type} model do not tell the shapes of its layers; "
                "serve it once, and its worker writes them down"
            )
        # Older configs leave the field out: a head that is not in the files is tied then.
        return cls.of(entries, tied=config.tie_word_embeddings is not False)

    @classmethod
    def of(cls, entries: Iterable[TensorEntry], *, tied: bool) -> Self:
        """Tell linear layers from embeddings; `tied` adds the head that shares an embedding."""
        listed = tuple(entries)
        shapes = {
            entry.name.removesuffix(".weight"): (entry.shape[0], entry.shape[1])
            for entry in listed
            if entry.name.endswith(".weight") and len(entry.shape) == 2 and entry.dtype in _FLOATS
        }
        embeddings = {path: shape for path, shape in shapes.items() if _leaf(path) in _EMBEDDINGS}
        linears = {path: shape for path, shape in shapes.items() if path not in embeddings}
        heads = frozenset(path for path in linears if _leaf(path) in _HEADS)
        tokens = [path for path in embeddings if _leaf(path) in _TOKEN_EMBEDDINGS]
        is_tied = tied and not heads and len(tokens) == 1
        if is_tied:
            linears["lm_head"] = shapes[tokens[0]]
            heads = frozenset({"lm_head"})
        biases = {
            entry.name.removesuffix(".bias"): entry.shape[0]
            for entry in listed
            if entry.name.endswith(".bias") and len(entry.shape) == 1 and entry.dtype in _FLOATS
        }
        return cls(
            MappingProxyType(linears),
            MappingProxyType(embeddings),
            heads,
            token_embedding=tokens[0] if len(tokens) == 1 else None,
            is_tied=is_tied,
            biases=MappingProxyType(biases),
        )


def weight_files(model_dir: Path) -> list[Path]:
    """Return the safetensors files of a model folder: one, or the shards of its index.

    Raises:
        OSError, ValueError, msgspec.ValidationError: the index cannot be read.
    """
    index = model_dir / "model.safetensors.index.json"
    if not index.exists():
        return [model_dir / "model.safetensors"]
    names = set(msgspec.convert(_json(index), _Index).weight_map.values())
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise ValueError(f"{index.name} names a file outside the folder: {outside[0]!r}")
    return [model_dir / name for name in sorted(names)]


def _json(path: Path) -> object:
    # The operator's own file, which may hold Infinity: no reason to be strict.
    return json.loads(path.read_bytes())


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]
