"""Chat templates in jinja2's immutable sandbox; as a program, they run here apart from the gateway.

The program is `python -I template_environment.py MEMORY_BYTES`: it needs jinja2 and nothing of
Loraplex. It reads frames from its standard input and answers each on its standard output; a frame
is a 4-byte little-endian length and JSON. It ends with its standard input, and by a signal when one
template takes more processor time than its frame allows.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.constants  # jinja2 would load both when a template needs them, too late for a file
import jinja2.debug
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

KEPT_TEMPLATES = 32
MAX_REASON_CHARS = 500


def compile_template(source: str, now: Callable[[], datetime]) -> jinja2.Template:
    """Compile a chat template with all that templates expect of transformers.

    Raises:
        jinja2.TemplateError: it is no template.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment.from_string(source)


def render_chat(
    template: jinja2.Template, special_tokens: Mapping[str, str], messages: list[dict[str, str]]
) -> str:
    """The text of a conversation, up to where the assistant answers; `special_tokens` are the
    template's variables `bos_token`, `eos_token`, …

    Raises:
        jinja2.TemplateError: the template refuses the conversation.
    """
    return template.render(
        special_tokens,
        messages=messages,
        tools=None,
        documents=None,
        add_generation_prompt=True,
    )


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


def _shut_in(memory_bytes: int) -> None:
    """Give up what a template must not have, should it get out of the sandbox."""
    for what, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 3),  # no file and no connection can be opened any more
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(what, (limit, limit))


@lru_cache(KEPT_TEMPLATES)
def _compiled(source: str) -> jinja2.Template:
    return compile_template(source, lambda: datetime.now(UTC))


def _answer(asked: dict[str, Any]) -> dict[str, str]:
    """What came of one frame: `text`, or `refused` with the reason; `spent` if the process should
    not be used again."""
    # The kernel's timer: no template can catch it, and it holds when the gateway is gone.
    signal.setitimer(signal.ITIMER_PROF, asked["timeout_s"])
    try:
        return {"text": _text(asked)}
    except MemoryError as error:
        return {"refused": _reason(error), "spent": "memory"}
    except Exception as error:  # noqa: BLE001  a template can raise what Python can
        return {"refused": _reason(error)}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _text(asked: dict[str, Any]) -> str:
    text = render_chat(_compiled(asked["source"]), asked["special_tokens"], asked["messages"])
    if len(text) > asked["max_chars"]:
        raise ValueError(f"it gives more than {asked['max_chars']} characters")
    text.encode()
    return text


def _reason(error: Exception) -> str:
    """Why a template failed, in words that tell nothing of this machine."""
    reasons = {
        MemoryError: "it takes too much memory",
        OSError: "it asks for what is not there",
        RecursionError: "it calls itself too deeply",
        UnicodeEncodeError: "it gives half of a surrogate pair, which is no text",
    }
    known = next((reasons[kind] for kind in type(error).__mro__ if kind in reasons), None)
    return known or (str(error) or type(error).__name__)[:MAX_REASON_CHARS]


def _serve() -> None:
    while len(head := sys.stdin.buffer.read(4)) == 4:
        asked = json.loads(sys.stdin.buffer.read(int.from_bytes(head, "little")))
        reply = json.dumps(_answer(asked)).encode("ascii")
        sys.stdout.buffer.write(len(reply).to_bytes(4, "little") + reply)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    os.chdir("/")
    _compiled("{{ 'loads what the first template needs' | upper | tojson }}").render()
    _shut_in(int(sys.argv[1]))
    _serve()
