"""The base model that commands check adapters against, where no worker need run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import CommandFailed

if TYPE_CHECKING:
    from loraplex.adapters.base_shapes import BaseShapes
    from loraplex.platform.base_record import BaseRecord
    from loraplex.platform.settings import Settings

ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|demo", help="Base model's folder. Default: what `loraplex serve` served."
    ),
]


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The base model that an adapter is checked against."""

    name: str
    path: Path
    """Its folder."""
    shapes: "BaseShapes"


def find_base_model(settings: "Settings", model: str | None) -> BaseModel | None:
    """The base model asked for, else the one that the worker served last; None if none was.

    The name matters: an adapter is served only on the base model it was checked against. Raises
    CommandFailed.
    """
    from loraplex.adapters.base_shapes import BaseShapes
    from loraplex.platform.base_record import shapes_told
    from loraplex.platform.demo.base import DEMO_MODEL_NAME, demo_model_dir
    from loraplex.platform.worker_settings import DEMO_MODEL

    if model == DEMO_MODEL:
        folder = demo_model_dir(settings.data_dir)
        return BaseModel(DEMO_MODEL_NAME, folder, BaseShapes.read(folder))
    served = _served_model(settings.base_record_path, is_needed=model is None)
    if served is not None and model in (None, str(served.path)):
        return BaseModel(served.name, served.path, shapes_told(served.shapes))
    if model is None:
        return None
    path = Path(model).resolve()
    return BaseModel(path.name, path, BaseShapes.read(path))


def _served_model(path: Path, *, is_needed: bool) -> "BaseRecord | None":
    """What the worker recorded when it last loaded its model."""
    from loraplex.platform.base_record import read_record

    try:
        return read_record(path)
    except (OSError, ValueError) as error:
        if not is_needed:
            return None
        raise CommandFailed(
            f"{path} cannot be read ({error!r}); start `loraplex serve` "
            "once, which writes it, or name the model's folder with --model."
        ) from error
