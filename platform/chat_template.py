"""Chat templates of models, rendered in a sandbox that has what templates expect."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from loraplex.platform.errors import InvalidRequest


class ChatTemplate:
    """A compiled template; the same conversation gives the same text as in transformers."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime]
    ) -> None:
        """`special_tokens` are the template's variables `bos_token`, `eos_token`, …"""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        self._template = environment.from_string(source)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: list[dict[str, str]]) -> str:
        """The text of a conversation, up to where the assistant answers.

        Raises:
            InvalidRequest: the template refuses the conversation; the message is the template's.
        """
        try:
            return self._template.render(
                self._special_tokens,
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
            )
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {error.message}", "messages"
            ) from error


class _Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; it renders as its body."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,  # noqa: ANN401  json.dumps checks it
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on: without jinja2's escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
