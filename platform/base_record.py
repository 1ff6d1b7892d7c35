"""What the worker notes of its base model, for commands that run where no worker does."""

import os
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.engine.protocol import LinearShapes


class BaseRecord(NamedTuple):
    """The base model that was served last from a data directory."""

    name: str
    path: Path
    """Its folder."""
    shapes: LinearShapes


class _Record(msgspec.Struct):
    name: str
    path: str
    shapes: LinearShapes


def write_record(path: Path, record: BaseRecord) -> None:
    """Note the model that is served from now on."""
    content = _Record(record.name, str(record.path), record.shapes)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_bytes(msgspec.json.encode(content))
    partial.replace(path)  # who reads it meanwhile finds a whole one


def read_record(path: Path) -> BaseRecord | None:
    """Return the model that was served last, or None if none was.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not what a worker writes.
    """
    if not path.exists():
        return None
    content = msgspec.json.decode(path.read_bytes(), type=_Record)
    return BaseRecord(content.name, Path(content.path), content.shapes)


def told(base: BaseShapes) -> LinearShapes:
    """Shapes as a worker tells them."""
    return LinearShapes(
        linears=dict(base.linears),
        embeddings=dict(base.embeddings),
        heads=tuple(sorted(base.heads)),
        token_embedding=base.token_embedding,
        is_tied=base.is_tied,
        biases=dict(base.biases),
        parameters=dict(base.parameters),
    )


def shapes_told(shapes: LinearShapes) -> BaseShapes:
    """The same as a worker tells it."""
    return BaseShapes(
        linears=MappingProxyType(shapes.linears),
        embeddings=MappingProxyType(shapes.embeddings),
        heads=frozenset(shapes.heads),
        token_embedding=shapes.token_embedding,
        is_tied=shapes.is_tied,
        biases=MappingProxyType(shapes.biases),
        parameters=MappingProxyType(shapes.parameters),
    )
