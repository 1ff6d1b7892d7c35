"""The base model's own chat template; it runs in the gateway. Those of adapters do not
(`template_process.py`)."""

from collections.abc import Callable, Mapping
from datetime import datetime

import jinja2

from loraplex.platform.errors import InvalidRequest
from loraplex.platform.template_environment import compile_template, render_chat


class ChatTemplate:
    """A compiled template; the same conversation gives the same text as in transformers."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime]
    ) -> None:
        """`special_tokens` are the template's variables `bos_token`, `eos_token`, …"""
        self._template = compile_template(source, now)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: list[dict[str, str]]) -> str:
        """The text of a conversation, up to where the assistant answers.

        Raises:
            InvalidRequest: the template refuses the conversation; the message is the template's.
        """
        try:
            return render_chat(self._template, self._special_tokens, messages)
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {error.message}", "messages"
            ) from error
