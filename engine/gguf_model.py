"""Models of GGUF files, written as folders of safetensors once and served from there."""

import errno
import os
import shutil
import uuid
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging as transformers_logging


def convert_gguf(source: Path, out: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write the model of one GGUF file as a folder of safetensors, config and tokenizer.

    ``source`` is a ``.gguf`` file with weights, tokenizer and chat template; its weights are
    dequantized to ``dtype``.  ``out`` appears only when it is whole, and one that exists
    already is left as it is.

    Raises:
        FileNotFoundError: ``source`` is not a file.
        ValueError: the file's tokenizer has no byte-level BPE, the only kind that is converted.
    """
    if not source.is_file():
        raise FileNotFoundError(errno.ENOENT, "no such GGUF file", str(source))
    if out.exists():
        return
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers has no types here
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{uuid.uuid4().hex}.partial")
    try:
        _save_tokenizer(source, partial)
        _save_weights(source, partial, dtype)
        _publish(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _save_tokenizer(source: Path, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    backend = tokenizer.backend_tokenizer
    byte_level = backend.pre_tokenizer
    if not isinstance(byte_level, pre_tokenizers.ByteLevel):
        raise ValueError(f"{source}: its tokenizer splits by {byte_level}, not by byte level")
    # The reader of GGUF files drops the digit split that the model was trained with.
    # Without it, blanks and line breaks before a number become other tokens.
    byte_level.add_prefix_space = False
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level]
    )
    tokenizer.save_pretrained(folder)


def _save_weights(source: Path, folder: Path, dtype: torch.dtype) -> None:
    # Without `dequantize` the model stays marked as quantized and refuses to be saved.
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=dtype,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)


def _publish(partial: Path, out: Path) -> None:
    # The writer of safetensors makes them private to this user, who may not be the one that serves.
    mode = (partial / "config.json").stat().st_mode
    for path in partial.iterdir():
        path.chmod(mode)
    # Contents must reach the disk before the name does, or a power cut leaves a whole-looking
    # folder of empty files.
    for path in [*partial.iterdir(), partial]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    try:
        partial.rename(out)
    except OSError as error:
        # Another process finished the same conversion first; its folder is as good.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
