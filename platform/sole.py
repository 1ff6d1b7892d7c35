"""One platform per data directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loraplex.engine.client import held


class DataDirInUse(Exception):
    """Another platform serves from the data directory; the message has the remedy."""


@contextmanager
def sole_platform(data_dir: Path) -> Iterator[None]:
    """Hold a data directory until the end of the block. Raises DataDirInUse."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    in_use = DataDirInUse(
        f"another `loraplex serve` serves from {data_dir.resolve()}; stop it, or choose another "
        "folder with --data-dir"
    )
    with held(data_dir / "serve.lock", in_use):
        yield
