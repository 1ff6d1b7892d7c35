"""A base model as a gateway sees it, read from its folder where no worker runs."""

from pathlib import Path

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.engine.protocol import ModelInfo
from loraplex.engine.tokenizer_files import TokenizerFiles, read_tokenizer
from loraplex.platform.base_record import told


def info_of(name: str, path: Path, shapes: BaseShapes) -> ModelInfo:
    """What adapters are checked against. Raises ValueError if the folder has no tokenizer.json, or
    a file that is not what its name says."""
    files: TokenizerFiles | None = read_tokenizer(path)
    if files is None:
        raise ValueError(f"{path} has no tokenizer.json with its tokenizer_config.json")
    rows, _ = shapes.embeddings.get(shapes.token_embedding or "", (0, 0))
    return ModelInfo(
        name=name,
        max_model_len=1,
        vocab_size=rows,
        tokenizer_json=files.tokenizer_json,
        chat_template=files.chat_template,
        special_tokens=files.special_tokens,
        dtype="",
        device="",
        shapes=told(shapes),
    )
