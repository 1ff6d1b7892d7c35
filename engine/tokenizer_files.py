"""Tokenizer files of a model folder, read without transformers."""

from pathlib import Path
from typing import NamedTuple

import msgspec


class _Template(msgspec.Struct):
    name: str
    template: str


class _Config(msgspec.Struct):
    chat_template: str | list[_Template] | None = None


class TokenizerFiles(NamedTuple):
    """What a gateway needs to tokenize and to render chats."""

    tokenizer_json: bytes
    chat_template: str | None
    special_tokens: dict[str, str]
    """`bos_token`, `eos_token`, … to their text."""


def read_tokenizer(folder: Path) -> TokenizerFiles | None:
    """Read the folder's files as they are; None where it has no tokenizer.json.

    Raises:
        ValueError: a file is not what its name says.
    """
    tokenizer, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not (tokenizer.is_file() and config.is_file()):
        return None
    document = config.read_bytes()
    template = folder / "chat_template.jinja"
    return TokenizerFiles(
        tokenizer_json=tokenizer.read_bytes(),
        chat_template=template.read_text() if template.is_file() else _chat_template(document),
        special_tokens=_special_tokens(document),
    )


def _chat_template(document: bytes) -> str | None:
    """Return the one called `default` where a config lists several."""
    template = msgspec.json.decode(document, type=_Config).chat_template
    if isinstance(template, list):
        return next((entry.template for entry in template if entry.name == "default"), None)
    return template


def _special_tokens(document: bytes) -> dict[str, str]:
    special: dict[str, str] = {}
    for name, token in msgspec.json.decode(document, type=dict[str, object]).items():
        content = token.get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(content, str):
            special[name] = content
    return special
